#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

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

VIRTUAL_TPU_EXPORT void virtual_tpu_set_stand_in(Change function) { stand_in = function; }

// Is told of every program that is submitted and its options, before anything is changed in them,
// and the number that its executions have in the event log; 0 if it did not compile.
typedef void (*Listener)(const PJRT_Program *program, const char *options, size_t options_size,
                         unsigned number);
static Listener listener;

VIRTUAL_TPU_EXPORT void virtual_tpu_set_listener(Listener function) { listener = function; }

// --- Equal programs are one executable.
// Replicas in threads of one process each compile the same program, and XLA's CPU runtime lets only
// runs of the same executable meet in a collective: as two they would wait for each other forever.
typedef struct Shared {
  struct Shared *next;
  PJRT_Client *client;
  PJRT_LoadedExecutable *executable;  // NULL while the first caller compiles it
  char *code;                         // the program, then the options
  size_t code_size, options_size;
  int users, deleted;
  unsigned number;  // from 1, in the order of their compilation
  int planted;      // it has a fault in it, and was not executed
  char *refusal;    // why the program was refused that this one stands in for
} Shared;

static Shared *shared;
static unsigned compiled_programs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t compiled = PTHREAD_COND_INITIALIZER;

static Shared *find_program(const PJRT_Client_Compile_Args *args) {
  const PJRT_Program *program = args->program;
  for (Shared *one = shared; one != NULL; one = one->next) {
    if (one->client == args->client && one->code_size == program->code_size &&
        one->options_size == args->compile_options_size && !one->deleted &&
        memcmp(one->code, program->code, one->code_size) == 0 &&
        memcmp(one->code + one->code_size, args->compile_options, one->options_size) == 0) {
      return one;
    }
  }
  return NULL;
}

static Shared *add_program(const PJRT_Client_Compile_Args *args) {
  const size_t code = args->program->code_size, options = args->compile_options_size;
  Shared *one = calloc(1, sizeof *one);
  if (one == NULL || (one->code = malloc(code + options)) == NULL) abort();
  one->client = args->client;
  one->code_size = code;
  one->options_size = options;
  memcpy(one->code, args->program->code, code);
  memcpy(one->code + code, args->compile_options, options);
  one->next = shared;
  return shared = one;
}

static void remove_program(Shared *one) {
  Shared **link = &shared;
  while (*link != one) link = &(*link)->next;
  *link = one->next;
  free(one->refusal);
  free(one->code);
  free(one);
}

static PJRT_Error *optimize(PJRT_Executable *executable, PJRT_Program *out) {
  PJRT_Executable_OptimizedProgram_Args args = {
      .struct_size = PJRT_Executable_OptimizedProgram_Args_STRUCT_SIZE,
      .executable = executable,
      .program = out};
  TRY(PJRT_Executable_OptimizedProgram, args);  // its size
  if ((out->code = malloc(out->code_size)) == NULL) abort();
  PJRT_Error *error = backend->PJRT_Executable_OptimizedProgram(&args);
  if (error != NULL) free(out->code);
  return error;
}

PJRT_Error *program_optimized(PJRT_LoadedExecutable *loaded, PJRT_Program *out) {
  *out = (PJRT_Program){.struct_size = PJRT_Program_STRUCT_SIZE};
  PJRT_LoadedExecutable_GetExecutable_Args get = {
      .struct_size = PJRT_LoadedExecutable_GetExecutable_Args_STRUCT_SIZE,
      .loaded_executable = loaded};
  TRY(PJRT_LoadedExecutable_GetExecutable, get);
  PJRT_Error *error = optimize(get.executable, out);
  PJRT_Executable_Destroy_Args destroy = {.struct_size = PJRT_Executable_Destroy_Args_STRUCT_SIZE,
                                          .executable = get.executable};
  error_drop(backend->PJRT_Executable_Destroy(&destroy));
  return error;
}

static PJRT_Error *compile_for_caller(PJRT_Client_Compile_Args *args, const void *caller) {
  const char *given = args->compile_options;
  const size_t given_size = args->compile_options_size;
  char *completed = options_completed(given, &args->compile_options_size);
  args->compile_options = completed;
  // As the bridge does, which the program has not come through.
  PJRT_Client_Compile_Args wide = {.struct_size = PJRT_Client_Compile_Args_STRUCT_SIZE,
                                   .client = args->client,
                                   .program = args->program,
                                   .compile_options = args->compile_options,
                                   .compile_options_size = args->compile_options_size};
  int reused;
  PJRT_Error *error = compilations_compile(&wide, &reused);
  args->executable = wide.executable;
  if (error == NULL) parameters_forget(args->executable);  // of another client's, at its address
  if (error == NULL)
    memories_learn(args->executable, args->program->code, args->program->code_size);
  if (reused) event_write("reuse", caller, NULL, "%s", "");
  args->compile_options = given;
  args->compile_options_size = given_size;
  free(completed);
  return error;
}

static PJRT_Error *compile_once(PJRT_Client_Compile_Args *args, const PJRT_Program *submitted,
                                const void *caller) {
  PJRT_Client_Compile_Args key = *args;
  key.program = submitted;
  pthread_mutex_lock(&lock);
  Shared *one;
  while ((one = find_program(&key)) != NULL && one->executable == NULL) {
    pthread_cond_wait(&compiled, &lock);
  }
  PJRT_Error *error = NULL;
  if (one == NULL) {
    one = add_program(&key);
    pthread_mutex_unlock(&lock);
    error = compile_for_caller(args, caller);
    if (error == NULL) error = donors_learn(args->executable, submitted);
    pthread_mutex_lock(&lock);
    if (error != NULL) {
      remove_program(one);
    } else {
      one->executable = args->executable;
      one->number = ++compiled_programs;
    }
    pthread_cond_broadcast(&compiled);
  }
  if (error == NULL) {
    ++one->users;
    args->executable = one->executable;
  }
  pthread_mutex_unlock(&lock);
  return error;
}

static Shared *find_executable(const PJRT_LoadedExecutable *executable) {
  Shared *one = shared;
  while (one != NULL && one->executable != executable) one = one->next;
  return one;
}

static PJRT_Error *destroy(PJRT_LoadedExecutable_Destroy_Args *args) {
  pthread_mutex_lock(&lock);
  Shared *one = find_executable(args->executable);
  const int last = one == NULL || --one->users == 0;
  if (one != NULL && last) remove_program(one);
  pthread_mutex_unlock(&lock);
  if (last) {
    meeting_forget(args->executable);
    compilations_forget(args->executable);
    donors_forget(args->executable);
    parameters_forget(args->executable);
    memories_forget(args->executable);
    devices_forget_executable(args->executable);
  }
  return last ? bridge_PJRT_LoadedExecutable_Destroy(args) : NULL;
}

// Deleting frees the program while the object lives on; the other users still need it.
static PJRT_Error *delete(PJRT_LoadedExecutable_Delete_Args *args) {
  pthread_mutex_lock(&lock);
  Shared *one = find_executable(args->executable);
  const int only = one == NULL || one->users == 1;
  if (one != NULL && only) one->deleted = 1;
  pthread_mutex_unlock(&lock);
  return only ? bridge_PJRT_LoadedExecutable_Delete(args) : NULL;
}

// What the backend's compiler has made of a program by its number: its optimized HloModuleProto, to
// be freed. NULL when the program is gone or the backend can't say.
VIRTUAL_TPU_EXPORT char *virtual_tpu_optimized(unsigned number, size_t *size) {
  pthread_mutex_lock(&lock);
  const Shared *one = shared;
  while (one != NULL && (one->number != number || one->executable == NULL)) one = one->next;
  PJRT_Program program = {0};
  PJRT_Error *error = one == NULL ? NULL : program_optimized(one->executable, &program);
  pthread_mutex_unlock(&lock);
  error_drop(error);
  if (one == NULL || error != NULL) return NULL;
  const int with_config = program.format_size > 3;  // hlo_with_config
  unsigned char *end, *module = find_module(program.code, program.code_size, with_config, &end);
  if (module == NULL) {
    free(program.code);
    return NULL;
  }
  *size = (size_t)(end - module);
  return memmove(program.code, module, *size);
}

// --- Compile and execute

static uint64_t fingerprint(const char *bytes, size_t size) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ (unsigned char)bytes[i]) * 0x100000001B3u;
  return hash;
}

void event_compilation(const char *event, const void *caller, const PJRT_Program *program) {
  char *stack = event_wants_stack(event) ? python_stack() : NULL;
  char format[64], quoted[128];
  snprintf(format, sizeof format, "%.*s", (int)program->format_size, program->format);
  event_write(event, caller, stack,
              ", \"format\": %s, \"bytes\": %zu, \"fingerprint\": \"%016llx\"",
              event_quote(quoted, sizeof quoted, format), program->code_size,
              (unsigned long long)fingerprint(program->code, program->code_size));
  free(stack);
}

// Read a line at `*text` into `line`, and move `*text` behind it.
static void read_line(const char **text, char *line, size_t size) {
  const size_t length = strcspn(*text, "\n");
  snprintf(line, size, "%.*s", (int)length, *text);
  *text += length + ((*text)[length] == '\n');
}

// An event for each name, which is a member of it under the event's own name, as its mode is.
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

// An option without effect is an event, whose caller is the context.
static void write_option(const char *name, size_t size, const void *caller) {
  char text[128], quoted[256];
  snprintf(text, sizeof text, "%.*s", (int)(size < sizeof text ? size : sizeof text - 1), name);
  event_write("option", caller, NULL, ", \"option\": %s", event_quote(quoted, sizeof quoted, text));
}

static unsigned number_of(const PJRT_LoadedExecutable *executable) {
  pthread_mutex_lock(&lock);
  const Shared *one = find_executable(executable);
  const unsigned number = one == NULL ? 0 : one->number;
  pthread_mutex_unlock(&lock);
  return number;
}

static PJRT_Program program_of(const Changed *changed, const PJRT_Program *from) {
  PJRT_Program program = *from;
  program.format = changed->format;
  program.format_size = strlen(changed->format);
  program.code = (char *)changed->code;
  program.code_size = changed->code_size;
  return program;
}

// One whose code is the caller's to free, and outlives the next answer in the same thread.
static PJRT_Program copy_of(const Changed *changed, const PJRT_Program *from) {
  PJRT_Program program = program_of(changed, from);
  if ((program.code = malloc(changed->code_size)) == NULL) abort();
  memcpy(program.code, changed->code, changed->code_size);
  return program;
}

// Whether a program may need what the CPU's compiler drops, or refuses late or otherwise than as
// unimplemented. It need not: the rewriter knows.
static int may_need_rewriting(const PJRT_Program *program) {
  static const char *const NAMES[] = {"_xla_host_transfer_handler_name",
                                      "annotate_device_placement", "pinned_host", "AllocateBuffer",
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
  PJRT_Error *error = may_need ? NULL : compile_once(args, submitted, caller);
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
    error = compile_once(args, submitted, caller);
    args->program = given;
  } else if (out.error != NULL) {
    char *text = error == NULL ? NULL : error_text(error);
    error = error_new(PJRT_Error_Code_UNIMPLEMENTED, "%s%svirtual TPU: %s",
                      text == NULL ? "" : text, text == NULL ? "" : "\n", out.error);
    free(text);
  } else if (may_need) {
    error = compile_once(args, submitted, caller);
  }
  return error;
}

static void mark_planted(const PJRT_LoadedExecutable *executable) {
  pthread_mutex_lock(&lock);
  find_executable(executable)->planted = 1;
  pthread_mutex_unlock(&lock);
}

// Nobody can see a fault in a program that does not run.
static void note_planted(const PJRT_LoadedExecutable *executable, const void *caller) {
  pthread_mutex_lock(&lock);
  Shared *one = find_executable(executable);
  const int planted = one != NULL && one->planted;
  if (planted) one->planted = 0;
  pthread_mutex_unlock(&lock);
  if (planted) event_plant(caller, "executed");
}

// Compile the program of `args` with a fault in it, if there is one to plant. What the compiler
// refuses, or dies of, is no fault that a test could see: the events tell them apart.
static PJRT_Error *plant_and_compile(PJRT_Client_Compile_Args *args, const PJRT_Program *submitted,
                                     const void *caller) {
  const PJRT_Program *given = args->program;
  Changed out = {0};
  if (planter == NULL ||
      !planter(given->format, given->format_size, given->code, given->code_size, &out)) {
    if (out.error != NULL) fprintf(stderr, "virtual TPU: %s\n", out.error);
    return compile_or_rewrite(args, submitted, caller);
  }
  PJRT_Program program = copy_of(&out, given);
  args->program = &program;
  event_plant(caller, "given");
  PJRT_Error *error = compile_or_rewrite(args, submitted, caller);
  event_plant(caller, error == NULL ? "taken" : "refused");
  if (error == NULL) mark_planted(args->executable);
  args->program = given;
  free(program.code);
  if (error == NULL) return NULL;
  error_drop(error);
  return compile_or_rewrite(args, submitted, caller);
}

// Whether a program may call a Pallas kernel. Of HLO that is certain. MLIR's bytecode has each text
// once, with an end, be it a target or the name of a function: the interpreter knows.
static int may_call_kernel(const PJRT_Program *program) {
  if (program->format_size >= 3 && memcmp(program->format, "hlo", 3) == 0) {
    return module_calls_kernel(program->code, program->code_size, program->format_size > 3);
  }
  static const char TARGET[] = KERNEL_TARGET, IN_TEXT[] = "custom_call @" KERNEL_TARGET "(";
  return memmem(program->code, program->code_size, TARGET, sizeof TARGET) != NULL ||
         memmem(program->code, program->code_size, IN_TEXT, sizeof IN_TEXT - 1) != NULL;
}

static PJRT_Error *compile_submitted(PJRT_Client_Compile_Args *args, const void *caller) {
  const PJRT_Program *submitted = args->program;
  if (!may_call_kernel(submitted)) {
    return plant_and_compile(args, submitted, caller);
  }
  if (interpreter == NULL) {
    return error_new(PJRT_Error_Code_UNIMPLEMENTED,
                     "virtual TPU: the program calls a Pallas kernel, and this process has no "
                     "Python half of the virtual TPU to interpret it");
  }
  Changed out = {0};
  const int changed = interpreter(submitted->format, submitted->format_size, submitted->code,
                                  submitted->code_size, &out);
  if (out.error != NULL) {
    return error_new(PJRT_Error_Code_UNIMPLEMENTED, "virtual TPU: %s", out.error);
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

// Where a program was refused, give the caller one that takes and returns the same and is not to
// run: whoever only compiles goes on, and the other compiler decides.
static PJRT_Error *compile_stand_in(PJRT_Client_Compile_Args *args, const void *caller,
                                    PJRT_Error *refused) {
  const PJRT_Program *submitted = args->program;
  Changed out = {0};
  if (!stand_in(submitted->format, submitted->format_size, submitted->code, submitted->code_size,
                &out)) {
    return refused;
  }
  PJRT_Program program = copy_of(&out, submitted);
  args->program = &program;
  PJRT_Error *error = compile_once(args, submitted, caller);
  args->program = submitted;
  free(program.code);
  if (error != NULL) {
    error_drop(error);
    return refused;
  }
  char *why = error_text(refused);
  pthread_mutex_lock(&lock);
  Shared *one = find_executable(args->executable);
  if (one->refusal == NULL) {
    one->refusal = why;
    why = NULL;
  }
  pthread_mutex_unlock(&lock);
  free(why);
  return NULL;
}

// An error for an execution of one that stands in for another.
static PJRT_Error *stand_in_refused(const PJRT_LoadedExecutable *executable) {
  pthread_mutex_lock(&lock);
  const Shared *one = find_executable(executable);
  PJRT_Error *error =
      one == NULL || one->refusal == NULL
          ? NULL
          : error_new(PJRT_Error_Code_UNIMPLEMENTED,
                      "virtual TPU: this program can only be compiled by libtpu, not run here: %s",
                      one->refusal);
  pthread_mutex_unlock(&lock);
  return error;
}

static PJRT_Error *compile(PJRT_Client_Compile_Args *args) {
  const void *caller = __builtin_return_address(0);
  PJRT_Error *forked = devices_check_process();
  if (forked != NULL) return forked;
  event_compilation("compile", caller, args->program);
  options_ignored(args->compile_options, args->compile_options_size, write_option, caller);
  PJRT_Error *error = options_refused(args->compile_options, args->compile_options_size);
  if (error == NULL) error = refusal_explained(compile_submitted(args, caller));
  const int compiles = error == NULL;
  if (!compiles && stand_in != NULL) error = compile_stand_in(args, caller, error);
  if (listener != NULL) {
    listener(args->program, args->compile_options, args->compile_options_size,
             compiles ? number_of(args->executable) : 0);
  }
  return error;
}

static PJRT_Error *execute(PJRT_LoadedExecutable_Execute_Args *args) {
  PJRT_Error *forked = devices_check_process();
  if (forked != NULL) return forked;
  PJRT_Error *refused = stand_in_refused(args->executable);
  if (refused != NULL) {
    unseen_returned(refused, __builtin_return_address(0));
    return refused;
  }
  char *stack = event_wants_stack("execute") ? python_stack() : NULL;
  event_write("execute", __builtin_return_address(0), stack, ", \"devices\": %zu, \"program\": %u",
              args->num_devices, number_of(args->executable));
  free(stack);
  if (planter != NULL) note_planted(args->executable, __builtin_return_address(0));
  PJRT_Error *mismatch = parameters_check(args);
  if (mismatch != NULL) return mismatch;
  PJRT_ExecuteOptions wide, *given = args->options;
  PJRT_Error *error = widen_PJRT_ExecuteOptions(&wide, given);
  if (error != NULL) return error;
  args->options = &wide;
  int met = 0;
  error = meeting_execute(args, &met);
  if (error == NULL && !met) {
    error = unseen_execute(args, __builtin_return_address(0));
    if (error == NULL) error = donors_delete(args);
  }
  if (error == NULL) error = memories_place(args);
  usage_executed(args, error == NULL);
  args->options = given;
  if (error != NULL) unseen_returned(error, __builtin_return_address(0));
  return error;
}

// The caller asks twice: for the size, then for the program.
static PJRT_Error *optimized_program(PJRT_Executable_OptimizedProgram_Args *args) {
  const int filled = args->program->code != NULL;
  PJRT_Error *error = bridge_PJRT_Executable_OptimizedProgram(args);
  const PJRT_Program *program = args->program;
  if (error == NULL && filled && program->format_size >= 3 &&
      memcmp(program->format, "hlo", 3) == 0) {
    const int with_config = program->format_size > 3;  // hlo_with_config
    renumber_instructions(program->code, program->code_size, with_config);
  }
  return error;
}

// The executables of a client end with it, and another client may get its address.
void programs_forget(const PJRT_Client *client) {
  pthread_mutex_lock(&lock);
  for (Shared *one = shared, *next; one != NULL; one = next) {
    next = one->next;
    if (one->client != client) continue;
    meeting_forget(one->executable);
    compilations_forget(one->executable);
    donors_forget(one->executable);
    parameters_forget(one->executable);
    memories_forget(one->executable);
    remove_program(one);
  }
  pthread_mutex_unlock(&lock);
}

void programs_fill(PJRT_Api *api) {
  api->PJRT_Client_Compile = compile;
  api->PJRT_LoadedExecutable_Destroy = destroy;
  api->PJRT_LoadedExecutable_Delete = delete;
  api->PJRT_LoadedExecutable_Execute = execute;
  api->PJRT_Executable_OptimizedProgram = optimized_program;
}
