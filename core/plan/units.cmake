# Wrap policies, units, flat layouts, groups.
foreshard_library(units
  SOURCES auto_units.cpp flat_layout.cpp groups.cpp instances.cpp module_tree.cpp name_patterns.cpp unit_options.cpp
          unit_params.cpp unit_selection.cpp unit_traps.cpp units.cpp wrap_policy.cpp
  HEADERS auto_units.h flat_layout.h groups.h instances.h module_tree.h name_patterns.h unit_options.h unit_params.h
          unit_selection.h unit_traps.h units.h wrap_policy.h
  DEPS foreshard::core foreshard::model
  PRIVATE_DEPS foreshard::shard_layout fmt::fmt)
