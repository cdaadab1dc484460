# Archives of torch.export: part of foreshard_model, which opens them.
target_sources(foreshard_model PRIVATE pt2_archive.cpp pt2_composites.cpp pt2_fields.cpp pt2_model.cpp pt2_ops.cpp pt2_payload.cpp pt2_precision.cpp pt2_program.cpp pt2_stack.cpp
                                       pt2_symbols.cpp pt2_tree.cpp)
target_sources(foreshard_model PUBLIC FILE_SET proven FILES pt2_archive.h pt2_composites.h pt2_model.h pt2_ops.h pt2_payload.h pt2_precision.h pt2_program.h pt2_symbols.h pt2_tree.h)
target_link_libraries(foreshard_model PRIVATE PkgConfig::LIBZIP simdjson::simdjson)
