# What a program runs with: operators' calls, random numbers, starting values. Part of foreshard_exec.
target_sources(foreshard_exec PRIVATE buffers.cpp init_params.cpp operator_call.cpp random_numbers.cpp
                                      weight_source.cpp)
target_sources(foreshard_exec PUBLIC FILE_SET HEADERS FILES buffers.h counting_allocator.h init_params.h operator_call.h
                                                            random_numbers.h weight_source.h)
