// Written by other_optimizers.py with PyTorch 2.11.0: parameters after its steps.
#pragma once

namespace foreshard::exec {

struct SteppedByTorch {
  const char* kind;
  bool foreach;
  float params[5];
};

inline constexpr SteppedByTorch kSteppedByTorch[] = {
    {"adagrad", false, {0x1.ea627ep-2F, -0x1.3a7d9p+0F, 0x1.f5eab4p+0F, 0x1.7953f8p-5F, -0x1.6babfap-1F}},
    {"adagrad", true, {0x1.ea627ep-2F, -0x1.3a7d9p+0F, 0x1.f5eab4p+0F, 0x1.7953f8p-5F, -0x1.6babfap-1F}},
    {"rmsprop", false, {0x1.3aec1ep-2F, -0x1.0ae0fcp+0F, 0x1.9e54e4p+0F, -0x1.911538p-4F, -0x1.938764p-2F}},
    {"rmsprop", true, {0x1.3aec1ep-2F, -0x1.0ae0fcp+0F, 0x1.9e54e4p+0F, -0x1.911538p-4F, -0x1.938764p-2F}},
    {"rmsprop_both", false, {-0x1.c6188ep-2F, -0x1.cbcda4p-3F, 0x1.3c4f12p-1F, -0x1.bfcb7ap-1F, 0x1.6eeb22p-2F}},
    {"rmsprop_both", true, {-0x1.c6188ep-2F, -0x1.cbcda4p-3F, 0x1.3c4f12p-1F, -0x1.bfcb7ap-1F, 0x1.6eeb22p-2F}},
    {"nadam", false, {0x1.e28fbcp-2F, -0x1.3878eap+0F, 0x1.f1efdcp+0F, 0x1.4e25a4p-5F, -0x1.63b444p-1F}},
    {"nadam", true, {0x1.e28fbcp-2F, -0x1.3878eap+0F, 0x1.f1efdcp+0F, 0x1.4e25a4p-5F, -0x1.63b444p-1F}},
    {"nadam_decoupled", false, {0x1.e66fd2p-2F, -0x1.3844eap+0F, 0x1.f6ede4p+0F, 0x1.4c81b6p-5F, -0x1.72534cp-1F}},
    {"nadam_decoupled", true, {0x1.e66fd2p-2F, -0x1.3844eap+0F, 0x1.f6ede4p+0F, 0x1.4c81b8p-5F, -0x1.72534cp-1F}},
    {"radam", false, {0x1.f1efcp-2F, -0x1.37ccf2p+0F, 0x1.fd30fcp+0F, -0x1.d21afep-8F, -0x1.7dc66ap-1F}},
    {"radam", true, {0x1.f1efcp-2F, -0x1.37ccf2p+0F, 0x1.fd30fcp+0F, -0x1.d21bp-8F, -0x1.7dc66ap-1F}},
    {"radam_decoupled", false, {0x1.f110b4p-2F, -0x1.3736eep+0F, 0x1.fc44a6p+0F, -0x1.cc86f4p-8F, -0x1.7d3316p-1F}},
    {"radam_decoupled", true, {0x1.f110b4p-2F, -0x1.3736eep+0F, 0x1.fc44a6p+0F, -0x1.cc8706p-8F, -0x1.7d3316p-1F}},
    {"adamax", false, {0x1.d218fap-2F, -0x1.346ac8p+0F, 0x1.ee8eb6p+0F, 0x1.60a396p-6F, -0x1.5ceba4p-1F}},
    {"adamax", true, {0x1.d218fap-2F, -0x1.346ac8p+0F, 0x1.ee8eb6p+0F, 0x1.60a396p-6F, -0x1.5ceba4p-1F}},
};

}  // namespace foreshard::exec
