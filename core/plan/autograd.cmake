# The symbolic autograd engine that fsdp1 and fsdp2 stand on.
foreshard_library(autograd
  SOURCES autograd.cpp
  HEADERS autograd.h
  DEPS foreshard::core)
