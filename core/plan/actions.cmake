# Wrapping, unshard_params, saving and loading as plans.
if(TARGET foreshard_plan)
  foreshard_library(plan_actions
    SOURCES actions/action_request.cpp actions/action_writer.cpp actions/build_actions.cpp actions/chunk_gather.cpp
            actions/hooked_walk.cpp actions/init.cpp actions/load.cpp actions/optimizer_plan.cpp actions/save.cpp
            actions/state_dict.cpp actions/summon.cpp
    HEADERS actions/action_request.h actions/action_writer.h actions/build_actions.h actions/chunk_gather.h
            actions/hooked_walk.h actions/state_dict.h
    DEPS foreshard::core foreshard::model foreshard::units
    PRIVATE_DEPS foreshard::plan)
endif()
