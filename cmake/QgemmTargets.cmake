# qgemm_warnings: the warning set of our own code; never leaks to consumers of the installed package.
add_library(qgemm_warnings INTERFACE)
target_compile_options(qgemm_warnings INTERFACE
  -Wall -Wextra -Werror -Wno-sign-compare -Wno-unused-parameter -Wno-missing-field-initializers)

# qgemm_library(<name> SOURCES ... HEADERS ... PUBLIC ... PRIVATE ...): the static library of a folder.
# Headers are named by their path from the repository root.
function(qgemm_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS;PUBLIC;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  list(TRANSFORM ARG_HEADERS PREPEND ${PROJECT_SOURCE_DIR}/)
  target_sources(${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${ARG_HEADERS})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_link_libraries(${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE} $<BUILD_INTERFACE:qgemm_warnings>)
  set_target_properties(${name} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
endfunction()

# qgemm_executable(<name> SOURCES ... LINK ...): a program in <build>/bin.
function(qgemm_executable name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} qgemm_warnings)
  # Packed relocations make the bundle's programs 0.4 MB smaller; glibc reads them from 2.36 on.
  target_link_options(${name} PRIVATE -Wl,-z,pack-relative-relocs)
endfunction()
