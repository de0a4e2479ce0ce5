#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "meet/meeting.h"

// Which programs exchange anything between devices, and what is known of those that have met.

// torch_xla compiles every program for all devices of the job, and one that exchanges nothing is
// each device's own, as on hardware.
typedef struct {
  Known known;
  int exchanges;
} Kind;

static Known *programs, *kinds;
static int programs_made;

// Hand the executable to the job's executor, as XLA serialises it.
static PJRT_Error *send_program(Program *program, PJRT_LoadedExecutable *loaded,
                                PJRT_Executable *executable) {
  PJRT_Executable_Serialize_Args bytes = {SIZED(PJRT_Executable_Serialize_Args),
                                          .executable = executable};
  PJRT_Error *error = compilations_serialize(loaded, &bytes);
  if (error != NULL) return error;
  const int file = memfd_create("xla-harness-program", MFD_CLOEXEC);
  size_t done = 0;
  while (file >= 0 && done < bytes.serialized_bytes_size) {
    const ssize_t size =
        write(file, bytes.serialized_bytes + done, bytes.serialized_bytes_size - done);
    if (size <= 0) break;
    done += (size_t)size;
  }
  if (done < bytes.serialized_bytes_size) {
    error =
        error_new(PJRT_Error_Code_RESOURCE_EXHAUSTED, "no memory for a program of %zu bytes: %s",
                  bytes.serialized_bytes_size, strerror(errno));
  } else {
    program->donated = donated_parameters(bytes.serialized_bytes, bytes.serialized_bytes_size,
                                          &program->donated_count);
    PJRT_Executable_NumPartitions_Args partitions = {SIZED(PJRT_Executable_NumPartitions_Args),
                                                     .executable = executable};
    backend->PJRT_Executable_NumPartitions(&partitions);
    job_send(file, "program %d %zu %zu %zu", program->number, done, partitions.num_partitions,
             program->devices_count);
  }
  if (file >= 0) close(file);
  bytes.serialized_executable_deleter(bytes.serialized_executable);
  return error;
}

static PJRT_Error *exchanges(PJRT_LoadedExecutable *loaded, int *exchanging) {
  PJRT_LoadedExecutable_GetExecutable_Args get = {SIZED(PJRT_LoadedExecutable_GetExecutable_Args),
                                                  .loaded_executable = loaded};
  TRY(PJRT_LoadedExecutable_GetExecutable, get);
  PJRT_Executable_Serialize_Args bytes = {SIZED(PJRT_Executable_Serialize_Args),
                                          .executable = get.executable};
  PJRT_Error *error = compilations_serialize(loaded, &bytes);
  if (error == NULL) {
    if (!executable_exchanges(bytes.serialized_bytes, bytes.serialized_bytes_size, exchanging)) {
      error = error_new(PJRT_Error_Code_INTERNAL,
                        "the executable does not have the program it was made of, "
                        "which says what it exchanges with other devices");
    }
    bytes.serialized_executable_deleter(bytes.serialized_executable);
  }
  PJRT_Executable_Destroy_Args destroy = {SIZED(PJRT_Executable_Destroy_Args),
                                          .executable = get.executable};
  backend->PJRT_Executable_Destroy(&destroy);
  return error;
}

PJRT_Error *program_exchanges(PJRT_LoadedExecutable *executable, int *exchanging) {
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&meeting_lock);
  Kind *kind = known_find(kinds, executable);
  if (kind == NULL && (error = exchanges(executable, exchanging)) == NULL) {
    kind = known_add(&kinds, executable, allocate(1, sizeof *kind, "an executable"));
    kind->exchanges = *exchanging;
  }
  if (kind != NULL) *exchanging = kind->exchanges;
  pthread_mutex_unlock(&meeting_lock);
  return error;
}

static PJRT_Error *describe(Program *program, PJRT_LoadedExecutable *loaded) {
  PJRT_LoadedExecutable_GetExecutable_Args get = {SIZED(PJRT_LoadedExecutable_GetExecutable_Args),
                                                  .loaded_executable = loaded};
  TRY(PJRT_LoadedExecutable_GetExecutable, get);
  program->executable = get.executable;
  PJRT_Executable_OutputElementTypes_Args types = {SIZED(PJRT_Executable_OutputElementTypes_Args),
                                                   .executable = get.executable};
  TRY(PJRT_Executable_OutputElementTypes, types);
  PJRT_Executable_OutputDimensions_Args dimensions = {SIZED(PJRT_Executable_OutputDimensions_Args),
                                                      .executable = get.executable};
  TRY(PJRT_Executable_OutputDimensions, dimensions);
  for (size_t i = 0; i < types.num_output_types; ++i) {
    PJRT_Error *error = segment_check_result(types.output_types[i], dimensions.dim_sizes[i]);
    if (error != NULL) return error;
  }
  program->results = types.num_output_types;
  program->types = types.output_types;
  program->dimensions = dimensions.dims;
  program->ranks = dimensions.dim_sizes;
  return send_program(program, loaded, get.executable);
}

char *devices_text(PJRT_Device *const *devices, size_t count) {
  char *text = NULL;
  size_t size;
  FILE *stream = open_memstream(&text, &size);
  for (size_t i = 0; i < count; ++i) {
    fprintf(stream, "%s%d", i == 0 ? "" : ",", device_id(devices[i]));
  }
  fclose(stream);
  return text;
}

static void free_program(Program *program) {
  for (Loan *loan = program->free, *next; loan != NULL; loan = next) {
    next = loan->next;
    loan_free(loan);
  }
  PJRT_Executable_Destroy_Args destroy = {SIZED(PJRT_Executable_Destroy_Args),
                                          .executable = program->executable};
  if (program->executable != NULL) backend->PJRT_Executable_Destroy(&destroy);
  free(program->devices);
  free(program->donated);
  free(program);
}

void program_leave(Program *program) {
  if (--program->users > 0 || program->known.object != NULL) return;
  job_send(-1, "forget %d", program->number);
  free_program(program);
}

void meeting_forget(const PJRT_LoadedExecutable *executable) {
  pthread_mutex_lock(&meeting_lock);
  free(known_take(&kinds, executable));
  Program *program = known_take(&programs, executable);
  if (program != NULL) {
    program->known.object = NULL;
    ++program->users;
    program_leave(program);
  }
  pthread_mutex_unlock(&meeting_lock);
}

static PJRT_Error *make_program(PJRT_LoadedExecutable *executable,
                                const PJRT_LoadedExecutable_AddressableDevices_Args *all,
                                Program **made) {
  Program *program = allocate(1, sizeof *program, "a program of several processes");
  program->number = ++programs_made;
  program->devices = devices_text(all->addressable_devices, all->num_addressable_devices);
  program->devices_count = all->num_addressable_devices;
  PJRT_Error *error = describe(program, executable);
  if (error != NULL) {
    free_program(program);
    return error;
  }
  *made = known_add(&programs, executable, program);
  return NULL;
}

PJRT_Error *program_of(PJRT_LoadedExecutable *executable,
                       const PJRT_LoadedExecutable_AddressableDevices_Args *all,
                       Program **program) {
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&meeting_lock);
  *program = known_find(programs, executable);
  if (*program == NULL) error = make_program(executable, all, program);
  if (error == NULL) ++(*program)->users;
  pthread_mutex_unlock(&meeting_lock);
  return error;
}
