#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "compile/compile.h"

// A TPU takes a donated argument even when no result gets its memory, and the buffer is deleted.
// The CPU's client deletes only those whose memory a result gets, so a program that reads a donated
// argument afterwards would work here and fail there.

typedef struct Donors {
  struct Donors *next;
  const PJRT_LoadedExecutable *executable;
  int64_t *parameters;
  size_t count;
} Donors;

static Donors *known;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void donors_forget(const PJRT_LoadedExecutable *executable) {
  pthread_mutex_lock(&lock);
  Donors **link = &known;
  while (*link != NULL && (*link)->executable != executable) link = &(*link)->next;
  Donors *one = *link;
  if (one != NULL) *link = one->next;
  pthread_mutex_unlock(&lock);
  if (one == NULL) return;
  free(one->parameters);
  free(one);
}

static void remember(const PJRT_LoadedExecutable *executable, int64_t *parameters, size_t count) {
  donors_forget(executable);  // that of another client, which had its address
  if (count == 0) return;
  Donors *one = malloc(sizeof *one);
  if (one == NULL) abort();
  pthread_mutex_lock(&lock);
  *one = (Donors){known, executable, parameters, count};
  known = one;
  pthread_mutex_unlock(&lock);
}

// Whether a program as it was submitted may have donors: few do, and the others cost nothing more.
static int is_mentioned(const PJRT_Program *program) {
  static const char ATTRIBUTE[] = "buffer_donor";
  if (program_is_hlo(program)) {
    return module_has_donors(program->code, program->code_size, program_has_config(program));
  }
  return memmem(program->code, program->code_size, ATTRIBUTE, sizeof ATTRIBUTE - 1) != NULL;
}

PJRT_Error *donors_learn(PJRT_LoadedExecutable *loaded, const PJRT_Program *submitted) {
  if (!is_mentioned(submitted)) return NULL;
  PJRT_Program program;
  PJRT_Error *error = program_optimized(loaded, &program);
  if (error != NULL) return error;
  size_t count;
  int64_t *found =
      donated_by_module(program.code, program.code_size, program_has_config(&program), &count);
  remember(loaded, found, count);
  free(program.code);
  return NULL;
}

void donors_learn_serialized(const PJRT_LoadedExecutable *loaded, const char *executable,
                             size_t size) {
  size_t count;
  int64_t *found = donated_parameters(executable, size, &count);
  remember(loaded, found, count);
}

int is_donated(const int64_t *donated, size_t count, const PJRT_ExecuteOptions *options,
               int64_t index) {
  for (size_t i = 0; i < options->num_non_donatable_input_indices; ++i) {
    if (options->non_donatable_input_indices[i] == index) return 0;
  }
  for (size_t i = 0; i < count; ++i) {
    if (donated[i] == index) return 1;
  }
  return 0;
}

PJRT_Error *donors_delete(const PJRT_LoadedExecutable_Execute_Args *args) {
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&lock);
  const Donors *one = known;
  while (one != NULL && one->executable != args->executable) one = one->next;
  for (size_t k = 0; one != NULL && k < args->num_args; ++k) {
    if (!is_donated(one->parameters, one->count, args->options, (int64_t)k)) continue;
    if (answers_wrongly("donated-buffer-kept")) continue;
    for (size_t i = 0; i < args->num_devices && error == NULL; ++i) {
      // Nothing happens to a buffer that is deleted already, as one whose memory a result has got.
      PJRT_Buffer_Delete_Args delete = {.struct_size = PJRT_Buffer_Delete_Args_STRUCT_SIZE,
                                        .buffer = args->argument_lists[i][k]};
      error = backend->PJRT_Buffer_Delete(&delete);
    }
  }
  pthread_mutex_unlock(&lock);
  return error;
}
