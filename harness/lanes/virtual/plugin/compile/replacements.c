#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compile/compile.h"

// What the Python half makes of a program. The memory is its own and lives until its next answer in
// the same thread.
typedef struct {
  const char *format, *code, *error;
  const char *names, *modes;  // of what it has replaced, one a line, and by what, if that differs
  size_t code_size;
} Changed;
// 0 when nothing is changed.
typedef int (*Change)(const char *format, size_t format_size, const char *code, size_t code_size,
                      Changed *out);
static Change interpreter;  // of programs that call Pallas kernels
static Change rewriter;     // of programs that the CPU's compiler refuses
static Change planter;      // of a fault, for those who ask which tests see it
static Change stand_in;  // of what can't be compiled here, where another compiler is asked as well

VIRTUAL_TPU_EXPORT void virtual_tpu_set_interpreter(Change function) { interpreter = function; }

VIRTUAL_TPU_EXPORT void virtual_tpu_set_rewriter(Change function) { rewriter = function; }

VIRTUAL_TPU_EXPORT void virtual_tpu_set_planter(Change function) { planter = function; }

int faults_are_planted(void) { return planter != NULL; }

VIRTUAL_TPU_EXPORT void virtual_tpu_set_stand_in(Change function) { stand_in = function; }

// Read a line at `*text` into `line`, and move `*text` behind it.
static void read_line(const char **text, char *line, size_t size) {
  const size_t length = strcspn(*text, "\n");
  snprintf(line, size, "%.*s", (int)length, *text);
  *text += length + ((*text)[length] == '\n');
}

// Write an event for each name, which is a member of it under the event's own name, as its mode is.
static void write_names(const char *event, const void *caller, const Changed *changed) {
  const char *names = changed->names, *modes = changed->modes;
  while (*names != '\0') {
    char name[256], mode[32], quoted[2][512];
    read_line(&names, name, sizeof name);
    read_line(&modes, mode, sizeof mode);
    event_write(event, caller, NULL, ", \"%s\": %s, \"mode\": %s", event,
                event_quote(quoted[0], sizeof quoted[0], name),
                event_quote(quoted[1], sizeof quoted[1], mode));
  }
}

static PJRT_Program program_of(const Changed *changed, const PJRT_Program *from) {
  PJRT_Program program = *from;
  program.format = changed->format;
  program.format_size = strlen(changed->format);
  program.code = (char *)changed->code;
  program.code_size = changed->code_size;
  return program;
}

// Copy a changed program: the code is the caller's to free, and outlives the next answer in the
// same thread.
static PJRT_Program copy_of(const Changed *changed, const PJRT_Program *from) {
  PJRT_Program program = program_of(changed, from);
  program.code = allocate(changed->code_size, 1, "a program");
  memcpy(program.code, changed->code, changed->code_size);
  return program;
}

// Return whether a program may need what the CPU's compiler drops, or refuses late or otherwise
// than as unimplemented. It need not: the rewriter knows.
static int may_need_rewriting(const PJRT_Program *program) {
  static const char *const NAMES[] = {"_xla_host_transfer_handler_name",
                                      "annotate_device_placement",
                                      "pinned_host",
                                      "AllocateBuffer",
                                      "Unpin",
                                      "async_collective_config"};
  for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; ++i) {
    if (memmem(program->code, program->code_size, NAMES[i], strlen(NAMES[i])) != NULL) return 1;
  }
  return 0;
}

// Compile the program of `args`, which has been made of the submitted one. What the CPU's compiler
// refuses it is given again, rewritten, or as HLO if it is in a StableHLO that it can't read.
static PJRT_Error *compile_or_rewrite(PJRT_Client_Compile_Args *args, const PJRT_Program *submitted,
                                      const void *caller) {
  const PJRT_Program *given = args->program;
  const int may_need = rewriter != NULL && may_need_rewriting(given);
  PJRT_Error *error = may_need ? NULL : shared_compile(args, submitted, caller);
  const int newer = stablehlo_is_newer(given);
  const int refused = error != NULL &&
                      (newer || error_code(error) == PJRT_Error_Code_UNIMPLEMENTED) &&
                      rewriter != NULL;
  if (!may_need && !refused) return error;
  Changed out = {0};
  const int changed =
      rewriter(given->format, given->format_size, given->code, given->code_size, &out);
  if (changed || (newer && out.code != NULL)) {  // HLO has no such versions
    error_drop(error);
    write_names("rewrite", caller, &out);
    PJRT_Program program = program_of(&out, given);
    args->program = &program;
    error = shared_compile(args, submitted, caller);
    args->program = given;
  } else if (out.error != NULL) {
    char *text = error == NULL ? NULL : error_text(error);
    error = error_again(PJRT_Error_Code_UNIMPLEMENTED, "%s%s%s%s", text == NULL ? "" : text,
                        text == NULL ? "" : "\n", in_own_words(""), out.error);
    free(text);
  } else if (may_need) {
    error = shared_compile(args, submitted, caller);
  }
  return error;
}

// Compile the program of `args` with a fault in it, if there is one to plant. What the compiler
// refuses, or dies of, is no fault that a test could see: the events tell them apart.
static PJRT_Error *plant_and_compile(PJRT_Client_Compile_Args *args, const PJRT_Program *submitted,
                                     const void *caller) {
  const PJRT_Program *given = args->program;
  Changed out = {0};
  if (planter == NULL ||
      !planter(given->format, given->format_size, given->code, given->code_size, &out)) {
    if (out.error != NULL) fprintf(stderr, "%s%s\n", in_own_words(""), out.error);
    return compile_or_rewrite(args, submitted, caller);
  }
  PJRT_Program program = copy_of(&out, given);
  args->program = &program;
  event_plant(caller, "given");
  PJRT_Error *error = compile_or_rewrite(args, submitted, caller);
  event_plant(caller, error == NULL ? "taken" : "refused");
  if (error == NULL) shared_set_planted(args->executable);
  args->program = given;
  free(program.code);
  if (error == NULL) return NULL;
  error_drop(error);
  return compile_or_rewrite(args, submitted, caller);
}

// Return whether a program may call a Pallas kernel. Of HLO that is certain. MLIR's bytecode has
// each text once, with an end, be it a target or the name of a function: the interpreter knows.
static int may_call_kernel(const PJRT_Program *program) {
  if (program_is_hlo(program)) {
    return module_calls_kernel(program->code, program->code_size, program_has_config(program));
  }
  static const char TARGET[] = KERNEL_TARGET, IN_TEXT[] = "custom_call @" KERNEL_TARGET "(";
  return memmem(program->code, program->code_size, TARGET, sizeof TARGET) != NULL ||
         memmem(program->code, program->code_size, IN_TEXT, sizeof IN_TEXT - 1) != NULL;
}

PJRT_Error *replaced_compile(PJRT_Client_Compile_Args *args, const void *caller) {
  const PJRT_Program *submitted = args->program;
  if (!may_call_kernel(submitted)) {
    return plant_and_compile(args, submitted, caller);
  }
  if (interpreter == NULL) {
    return error_new(PJRT_Error_Code_UNIMPLEMENTED,
                     "the program calls a Pallas kernel, and this process has no "
                     "Python half of the plugin to interpret it");
  }
  Changed out = {0};
  const int changed = interpreter(submitted->format, submitted->format_size, submitted->code,
                                  submitted->code_size, &out);
  if (out.error != NULL) {
    return error_new(PJRT_Error_Code_UNIMPLEMENTED, "%s", out.error);
  }
  if (!changed) return plant_and_compile(args, submitted, caller);
  write_names("kernel", caller, &out);
  PJRT_Program program = copy_of(&out, submitted);
  args->program = &program;
  PJRT_Error *error = plant_and_compile(args, submitted, caller);
  args->program = submitted;
  free(program.code);
  return error;
}

PJRT_Error *stand_in_compile(PJRT_Client_Compile_Args *args, const void *caller,
                             PJRT_Error *refused) {
  const PJRT_Program *submitted = args->program;
  Changed out = {0};
  if (stand_in == NULL || !stand_in(submitted->format, submitted->format_size, submitted->code,
                                    submitted->code_size, &out)) {
    return refused;
  }
  PJRT_Program program = copy_of(&out, submitted);
  args->program = &program;
  PJRT_Error *error = shared_compile(args, submitted, caller);
  args->program = submitted;
  free(program.code);
  if (error != NULL) {
    error_drop(error);
    return refused;
  }
  shared_refuse(args->executable, error_text(refused));
  return NULL;
}
