#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

// Another library's own table, a copy as long as it is. Its PJRT may be newer or older than the
// header here: only what both have is looked at, and what a caller hands over goes on untouched.
static const PJRT_Api *real;
static PJRT_Api *copy;

#define HAS(api, field) ((api)->struct_size >= PJRT_STRUCT_SIZE(PJRT_Api, field))
// Whether a caller's struct reaches to that field.
#define REACHES(args, type, field) ((args)->struct_size >= PJRT_STRUCT_SIZE(type, field))

// Read a number from a variable, or return `otherwise`: what can't be read is libtpu's to refuse.
static int number(LaunchVariable which, int least, int otherwise) {
  int value = otherwise;
  number_whole(launch_value(which), least, INT_MAX, &value);
  return value;
}

// Create a client. libtpu decides by these variables whether it makes the slices discover each
// other.
static PJRT_Error *create(PJRT_Client_Create_Args *args) {
  const void *caller = __builtin_return_address(0);
  const char *guard = launch_value(LAUNCH_NO_DISCOVERY);
  const int slices = number(LAUNCH_SLICES, 1, 1);
  const char *discovery =
      slices > 1 && (guard == NULL || strcmp(guard, "true") != 0) ? "true" : "false";
  char *stack = python_stack();
  event_write("client", caller, stack,
              ", \"slices\": %d, \"slice\": %d, \"discovery\": %s, \"waits\": %s", slices,
              number(LAUNCH_SLICE, 0, 0), discovery, discovery);
  free(stack);
  PJRT_Error *error = real->PJRT_Client_Create(args);
  if (*discovery == 't') {
    event_write(error == NULL ? "discovered" : "undiscovered", caller, NULL, "%s", "");
  }
  return error;
}

static PJRT_Error *compile(PJRT_Client_Compile_Args *args) {
  if (REACHES(args, PJRT_Client_Compile_Args, program) && args->program != NULL) {
    event_compilation("compile", __builtin_return_address(0), args->program);
  }
  return real->PJRT_Client_Compile(args);
}

static PJRT_Error *execute(PJRT_LoadedExecutable_Execute_Args *args) {
  if (REACHES(args, PJRT_LoadedExecutable_Execute_Args, num_devices)) {
    char *stack = event_wants_stack("execute") ? python_stack() : NULL;
    event_write("execute", __builtin_return_address(0), stack, ", \"devices\": %zu",
                args->num_devices);
    free(stack);
  }
  return real->PJRT_LoadedExecutable_Execute(args);
}

static const PJRT_Api *load(const char *path, char *wrong, size_t size) {
  const PJRT_Api *api = api_of("VIRTUAL_TPU_FORWARD", path, wrong, size);
  if (api == NULL) return NULL;
  if (api->pjrt_api_version.major_version != PJRT_API_MAJOR ||
      !HAS(api, PJRT_LoadedExecutable_Execute)) {
    snprintf(wrong, size, "VIRTUAL_TPU_FORWARD=%s is PJRT %d.%d; expected %d.x", path,
             api->pjrt_api_version.major_version, api->pjrt_api_version.minor_version,
             PJRT_API_MAJOR);
    return NULL;
  }
  return api;
}

const PJRT_Api *forward_api(const char *path, char *wrong, size_t size) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  if (copy == NULL && (real = load(path, wrong, size)) != NULL) {
    const size_t whole = real->struct_size > sizeof *copy ? real->struct_size : sizeof *copy;
    copy = allocate(1, whole, "a library's table of entries");
    memcpy(copy, real, real->struct_size);
    copy->PJRT_Client_Create = create;
    copy->PJRT_Client_Compile = compile;
    copy->PJRT_LoadedExecutable_Execute = execute;
    fewer_fill(copy);
  }
  pthread_mutex_unlock(&lock);
  return copy;
}
