#include <stdlib.h>
#include <string.h>

#include "compile/compile.h"

int program_is_hlo(const PJRT_Program *program) {
  return program->format_size >= 3 && memcmp(program->format, "hlo", 3) == 0;
}

int program_has_config(const PJRT_Program *program) {
  return program->format_size > 3;  // "hlo_with_config"
}

static PJRT_Error *optimize(PJRT_Executable *executable, PJRT_Program *out) {
  PJRT_Executable_OptimizedProgram_Args args = {SIZED(PJRT_Executable_OptimizedProgram_Args),
                                                .executable = executable, .program = out};
  TRY(PJRT_Executable_OptimizedProgram, args);  // its size
  out->code = allocate(out->code_size, 1, "an optimized program");
  PJRT_Error *error = backend->PJRT_Executable_OptimizedProgram(&args);
  if (error != NULL) free(out->code);
  return error;
}

PJRT_Error *program_optimized(PJRT_LoadedExecutable *loaded, PJRT_Program *out) {
  *out = (PJRT_Program){SIZED(PJRT_Program)};
  PJRT_LoadedExecutable_GetExecutable_Args get = {SIZED(PJRT_LoadedExecutable_GetExecutable_Args),
                                                  .loaded_executable = loaded};
  TRY(PJRT_LoadedExecutable_GetExecutable, get);
  PJRT_Error *error = optimize(get.executable, out);
  PJRT_Executable_Destroy_Args destroy = {SIZED(PJRT_Executable_Destroy_Args),
                                          .executable = get.executable};
  error_drop(backend->PJRT_Executable_Destroy(&destroy));
  return error;
}

// Return an optimized program. The caller calls twice: first for the size, then for the program.
static PJRT_Error *optimized_program(PJRT_Executable_OptimizedProgram_Args *args) {
  if (args->program == NULL) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     "PJRT_Executable_OptimizedProgram: no program");
  }
  const int is_filled = args->program->code != NULL;
  PJRT_Error *error = bridge_PJRT_Executable_OptimizedProgram(args);
  const PJRT_Program *program = args->program;
  if (error == NULL && is_filled && program_is_hlo(program)) {
    renumber_instructions(program->code, program->code_size, program_has_config(program));
  }
  return error;
}

void optimized_fill(PJRT_Api *api) { api->PJRT_Executable_OptimizedProgram = optimized_program; }
