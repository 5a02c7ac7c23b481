# Writes OUTPUT with VERSION and the git hash of SOURCE_DIR ("unknown" outside git, "-dirty" with
# uncommitted changes to tracked files), and leaves it alone when nothing changed.
cmake_minimum_required(VERSION 3.25)
set(GIT_HASH "")
find_program(git git)
if(git AND EXISTS ${SOURCE_DIR}/.git)
  execute_process(
    COMMAND ${git} -C ${SOURCE_DIR} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE GIT_HASH OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(GIT_HASH STREQUAL "")
  set(GIT_HASH unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT
"#pragma once
#define TIDEMARK_VERSION \"@VERSION@\"
#define TIDEMARK_GIT_HASH \"@GIT_HASH@\"
")
