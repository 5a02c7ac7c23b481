#include "sim/reserved_bound.h"
