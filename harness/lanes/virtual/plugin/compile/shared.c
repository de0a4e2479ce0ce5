#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "compile/compile.h"

// Equal programs are one executable. Replicas in threads of one process each compile the same
// program, and XLA's CPU runtime lets only runs of the same executable meet in a collective: with
// two executables they would wait for each other forever.

typedef struct Shared {
  struct Shared *next;
  PJRT_Client *client;
  PJRT_LoadedExecutable *executable;  // NULL while the first caller compiles it
  char *code;                         // the program, then the options
  size_t code_size, options_size;
  int users, deleted;
  unsigned number;  // from 1, in the order of their compilation
  int planted;      // it contains a planted fault and has not been executed yet
  char *refusal;    // why the program that this one stands in for was refused
} Shared;

static Shared *shared;
static unsigned compiled_programs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t compiled = PTHREAD_COND_INITIALIZER;

static Shared *find_program(const PJRT_Client_Compile_Args *args) {
  const PJRT_Program *program = args->program;
  for (Shared *entry = shared; entry != NULL; entry = entry->next) {
    if (entry->client == args->client && entry->code_size == program->code_size &&
        entry->options_size == args->compile_options_size && !entry->deleted &&
        memcmp(entry->code, program->code, entry->code_size) == 0 &&
        memcmp(entry->code + entry->code_size, args->compile_options, entry->options_size) == 0) {
      return entry;
    }
  }
  return NULL;
}

static Shared *find_executable(const PJRT_LoadedExecutable *executable) {
  Shared *entry = shared;
  while (entry != NULL && entry->executable != executable) entry = entry->next;
  return entry;
}

static Shared *add_program(const PJRT_Client_Compile_Args *args) {
  const size_t code = args->program->code_size, options = args->compile_options_size;
  Shared *entry = allocate(1, sizeof *entry, "an executable");
  entry->code = allocate(code + options, 1, "a program");
  entry->client = args->client;
  entry->code_size = code;
  entry->options_size = options;
  memcpy(entry->code, args->program->code, code);
  memcpy(entry->code + code, args->compile_options, options);
  entry->next = shared;
  return shared = entry;
}

static void remove_program(Shared *gone) {
  Shared **link = &shared;
  while (*link != gone) link = &(*link)->next;
  *link = gone->next;
  free(gone->refusal);
  free(gone->code);
  free(gone);
}

// Return whether a program has to be compiled again with MLIR's emitters: without them XLA's CPU
// compiler is wrong about floating-point numbers of 8 bits, also where it only moves them.
static int needs_emitters(PJRT_LoadedExecutable *executable) {
  PJRT_Program program;
  PJRT_Error *error = program_optimized(executable, &program);
  if (error != NULL) {
    error_drop(error);
    return 0;
  }
  const int needs =
      module_has_small_floats(program.code, program.code_size, program_has_config(&program));
  free(program.code);
  return needs;
}

static PJRT_Error *compile_for_caller(PJRT_Client_Compile_Args *args, const void *caller) {
  // The bridge has not widened this struct, which may be an older caller's.
  PJRT_Client_Compile_Args wide = {SIZED(PJRT_Client_Compile_Args), .client = args->client,
                                   .program = args->program,
                                   .compile_options_size = args->compile_options_size};
  int is_reused = 0;
  PJRT_Error *error = NULL;
  for (int with_emitters = 0; with_emitters < 2 && error == NULL; ++with_emitters) {
    if (with_emitters && !needs_emitters(wide.executable)) break;
    if (with_emitters) {
      program_forget(wide.executable);
      PJRT_LoadedExecutable_Destroy_Args destroy = {SIZED(PJRT_LoadedExecutable_Destroy_Args),
                                                    .executable = wide.executable};
      error_drop(backend->PJRT_LoadedExecutable_Destroy(&destroy));
    }
    wide.compile_options_size = args->compile_options_size;
    char *options = options_completed(args->compile_options, args->program, with_emitters,
                                      &wide.compile_options_size);
    wide.compile_options = options;
    error = compilations_compile(&wide, &is_reused);
    free(options);
  }
  if (is_reused) event_write("reuse", caller, NULL, "%s", "");
  if (error != NULL) return error;
  args->executable = wide.executable;
  parameters_forget(args->executable);  // an executable of another client had this address
  memories_learn(args->executable, args->program->code, args->program->code_size);
  return NULL;
}

PJRT_Error *shared_compile(PJRT_Client_Compile_Args *args, const PJRT_Program *submitted,
                           const void *caller) {
  PJRT_Client_Compile_Args key = *args;
  key.program = submitted;
  pthread_mutex_lock(&lock);
  Shared *entry;
  while ((entry = find_program(&key)) != NULL && entry->executable == NULL) {
    pthread_cond_wait(&compiled, &lock);
  }
  PJRT_Error *error = NULL;
  if (entry == NULL) {
    entry = add_program(&key);
    pthread_mutex_unlock(&lock);
    error = compile_for_caller(args, caller);
    pthread_mutex_lock(&lock);
    if (error != NULL) {
      remove_program(entry);
    } else {
      entry->executable = args->executable;
      entry->number = ++compiled_programs;
    }
    pthread_cond_broadcast(&compiled);
  }
  if (error == NULL) {
    ++entry->users;
    args->executable = entry->executable;
  }
  pthread_mutex_unlock(&lock);
  return error;
}

int shared_release(const PJRT_LoadedExecutable *executable) {
  pthread_mutex_lock(&lock);
  Shared *entry = find_executable(executable);
  const int is_last = entry == NULL || --entry->users == 0;
  if (entry != NULL && is_last) remove_program(entry);
  pthread_mutex_unlock(&lock);
  return is_last;
}

// Delete an executable if it has one user: that frees the program, which the other users still
// need, while the object lives on.
static PJRT_Error *delete(PJRT_LoadedExecutable_Delete_Args *args) {
  pthread_mutex_lock(&lock);
  Shared *entry = find_executable(args->executable);
  const int is_only_user = entry == NULL || entry->users == 1;
  if (entry != NULL && is_only_user) entry->deleted = 1;
  pthread_mutex_unlock(&lock);
  return is_only_user ? bridge_PJRT_LoadedExecutable_Delete(args) : NULL;
}

// Answer for a program that was deleted, which the CPU's client says of none.
static PJRT_Error *is_deleted(PJRT_LoadedExecutable_IsDeleted_Args *args) {
  PJRT_Error *error = bridge_PJRT_LoadedExecutable_IsDeleted(args);
  pthread_mutex_lock(&lock);
  const Shared *entry = find_executable(args->executable);
  if (error == NULL && entry != NULL && entry->deleted) args->is_deleted = 1;
  pthread_mutex_unlock(&lock);
  return error;
}

unsigned shared_number(const PJRT_LoadedExecutable *executable) {
  pthread_mutex_lock(&lock);
  const Shared *entry = find_executable(executable);
  const unsigned number = entry == NULL ? 0 : entry->number;
  pthread_mutex_unlock(&lock);
  return number;
}

void shared_set_planted(const PJRT_LoadedExecutable *executable) {
  pthread_mutex_lock(&lock);
  find_executable(executable)->planted = 1;
  pthread_mutex_unlock(&lock);
}

int shared_take_planted(const PJRT_LoadedExecutable *executable) {
  pthread_mutex_lock(&lock);
  Shared *entry = find_executable(executable);
  const int planted = entry != NULL && entry->planted;
  if (planted) entry->planted = 0;
  pthread_mutex_unlock(&lock);
  return planted;
}

void shared_refuse(const PJRT_LoadedExecutable *executable, char *why) {
  pthread_mutex_lock(&lock);
  Shared *entry = find_executable(executable);
  if (entry->refusal == NULL) {
    entry->refusal = why;
    why = NULL;
  }
  pthread_mutex_unlock(&lock);
  free(why);
}

const char *shared_refusal(const PJRT_LoadedExecutable *executable) {
  pthread_mutex_lock(&lock);
  const Shared *entry = find_executable(executable);
  const char *why = entry == NULL ? NULL : entry->refusal;
  pthread_mutex_unlock(&lock);
  return why;
}

void shared_forget(const PJRT_Client *client, void (*forget)(const PJRT_LoadedExecutable *)) {
  pthread_mutex_lock(&lock);
  for (Shared *entry = shared, *next; entry != NULL; entry = next) {
    next = entry->next;
    if (entry->client != client) continue;
    forget(entry->executable);
    remove_program(entry);
  }
  pthread_mutex_unlock(&lock);
}

// Return the optimized HloModuleProto of the program with this number, to be freed. NULL when the
// program is gone or the backend can't provide it.
VIRTUAL_TPU_EXPORT char *virtual_tpu_optimized(unsigned number, size_t *size) {
  pthread_mutex_lock(&lock);
  const Shared *entry = shared;
  while (entry != NULL && (entry->number != number || entry->executable == NULL)) {
    entry = entry->next;
  }
  PJRT_Program program = {0};
  PJRT_Error *error = entry == NULL ? NULL : program_optimized(entry->executable, &program);
  pthread_mutex_unlock(&lock);
  error_drop(error);
  if (entry == NULL || error != NULL) return NULL;
  unsigned char *end,
      *module = find_module(program.code, program.code_size, program_has_config(&program), &end);
  if (module == NULL) {
    free(program.code);
    return NULL;
  }
  *size = (size_t)(end - module);
  return memmove(program.code, module, *size);
}

void shared_fill(PJRT_Api *api) {
  api->PJRT_LoadedExecutable_Delete = delete;
  api->PJRT_LoadedExecutable_IsDeleted = is_deleted;
}
