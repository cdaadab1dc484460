// What a card does just now, as NVIDIA's management library tells it: goes into calibrated profiles, so that numbers of
// a throttled card are known as such.
#pragma once

#include <string>

namespace foreshard::exec {

/// "SM 1980 of 1980 MHz, 95 of 700 W, 34 C, driver 580.65.06"; "unknown: ..." where the library is not there or
/// refuses. `index` counts the visible cards (CUDA_VISIBLE_DEVICES); the library, which counts the machine's, is asked
/// by the card's PCI address. Loads the library by name on the first call.
std::string card_state(int index);

}  // namespace foreshard::exec
