# What `find_package(qgemm)` finds: the client library and what it is made of, headers and targets, as one component.
# Public headers are <qgemm/...>; those of the folders below them keep their paths under qgemm/src.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/qgemm)
set(libraries qgemm_base qgemm_kernels qgemm_cuda qgemm_bundle qgemm_weight_store qgemm_runtime qgemm_proto
    qgemm_proto_convert qgemm_grpc qgemm_client)

foreach(library ${libraries})
  string(REGEX REPLACE "^qgemm_" "" export_name ${library})
  set_target_properties(${library} PROPERTIES EXPORT_NAME ${export_name})
  target_include_directories(${library} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
install(TARGETS ${libraries} EXPORT qgemmTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT qgemm_dev
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/qgemm/src COMPONENT qgemm_dev)
# libqgemm.so, for programs in C: qgemm::c.
set_target_properties(qgemm_c PROPERTIES EXPORT_NAME c)
target_include_directories(qgemm_c INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
install(TARGETS qgemm_c EXPORT qgemmTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT qgemm_dev)
install(DIRECTORY client/qgemm/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/qgemm COMPONENT qgemm_dev
  FILES_MATCHING PATTERN *.h)
install(DIRECTORY ${PROJECT_BINARY_DIR}/proto/gen/qgemm/v1 DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/qgemm
  COMPONENT qgemm_dev FILES_MATCHING PATTERN *.h)
install(DIRECTORY proto/qgemm/v1 DESTINATION ${CMAKE_INSTALL_DATADIR}/qgemm/proto/qgemm
  COMPONENT qgemm_dev FILES_MATCHING PATTERN *.proto)

install(EXPORT qgemmTargets NAMESPACE qgemm:: DESTINATION ${package_dir} COMPONENT qgemm_dev)
configure_package_config_file(cmake/qgemmConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/qgemmConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/qgemmConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/qgemmConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/qgemmConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT qgemm_dev)
