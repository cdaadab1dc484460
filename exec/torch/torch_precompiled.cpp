#include "exec/torch/torch_precompiled.h"
