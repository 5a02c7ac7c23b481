#include "tools/claims/claim_kinds.h"

namespace tidemark {

const std::map<std::string, ClaimKind>& claim_kinds() {
  static const std::map<std::string, ClaimKind> kKinds = {
#define TIDEMARK_CLAIM_KIND(name) {#name, claims::name},
#include "tools/claims/claim_kinds.inc"
#undef TIDEMARK_CLAIM_KIND
  };
  return kKinds;
}

}  // namespace tidemark
