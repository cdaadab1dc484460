#include "exec/detail/torch_precompiled.h"
