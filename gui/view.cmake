foreshard_library(gui_view
  SOURCES view/fact_table.cpp view/frame_worker.cpp view/label_masks.cpp view/lane_painter.cpp view/legend.cpp view/main_window.cpp view/memory_painter.cpp
          view/pareto_painter.cpp view/pareto_widget.cpp view/picture.cpp view/pixel_canvas.cpp view/render.cpp view/report.cpp view/run_list.cpp view/scene_overlay.cpp
          view/scene_painter.cpp view/theme.cpp view/timeline_keys.cpp view/timeline_widget.cpp view/what_if_dock.cpp
          view/window_parts.cpp
  HEADERS view/fact_table.h view/frame_worker.h view/label_masks.h view/lane_painter.h view/main_window.h view/memory_painter.h view/pareto_painter.h
          view/pareto_widget.h view/picture.h view/pixel_canvas.h view/render.h view/report.h view/run_list.h view/scene_painter.h view/theme.h view/timeline_widget.h
          view/what_if_dock.h
  DEPS foreshard::gui_models Qt6::Widgets Qt6::Svg
  PRIVATE_DEPS fmt::fmt)

# The program, beside `foreshard`, which starts it by its name.
add_executable(foreshard-viewer main.cpp)
target_link_libraries(foreshard-viewer PRIVATE foreshard_options foreshard::gui_view)
install(TARGETS foreshard-viewer)
install(FILES desktop/org.foreshard.Viewer.desktop DESTINATION share/applications)
install(FILES desktop/org.foreshard.Viewer.svg DESTINATION share/icons/hicolor/scalable/apps)
