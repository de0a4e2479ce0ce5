#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "meet/meet.h"

// Executions that end in an error, and whether the user has been given it. A framework that does
// not read a result hears of an error by the event that the device is done, and drops it. So each
// such error is an event, and so is each error that the user gets: with a value that is copied to
// the host, or when a buffer is waited for. An error that a call returns is raised there and then.

// XLA's CPU client starts a launch in the threads that run programs, and waits there once 32 are on
// their way to a device. An earlier program that needs this thread to join a collective then hangs.
// So the caller waits, before there are as many.
enum { SECONDS_FOR_CALLBACKS = 2, MOST_LAUNCHES = 24 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static int running, given_events;  // executions on their way, and events that users have asked for
static int launches;               // calls with such executions

typedef struct {
  PJRT_Event *event;  // to be destroyed with this; NULL when it is the caller's
  size_t *left;       // executions of the same launch that are on their way; the last one frees it
  const void *caller;
  struct timespec since;
  HostTransfers *transfers;
} Execution;

void unseen_error(const void *caller, const struct timespec *since, const char *text) {
  event_write("error", caller, text, ", \"since\": %lld.%09ld", (long long)since->tv_sec,
              since->tv_nsec);
}

void virtual_tpu_record_error(const char *text) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  unseen_error(NULL, &now, text);
}

static void less(int *count) {
  pthread_mutex_lock(&lock);
  --*count;
  pthread_cond_broadcast(&ended);
  pthread_mutex_unlock(&lock);
}

static void more(int *count) {
  pthread_mutex_lock(&lock);
  ++*count;
  pthread_mutex_unlock(&lock);
}

static void end(PJRT_Error *error, void *argument) {
  Execution *execution = argument;
  if (error != NULL) {
    char *text = error_text(error);
    unseen_error(execution->caller, &execution->since, text);
    free(text);
  }
  if (execution->event != NULL) event_drop(execution->event);
  host_transfers_leave(execution->transfers, 1);
  pthread_mutex_lock(&lock);
  if (--*execution->left == 0) {
    free(execution->left);
    --launches;
  }
  pthread_mutex_unlock(&lock);
  free(execution);
  less(&running);
}

// Call `function` when the event is there; at once if nothing else is possible.
static void when_ready(PJRT_Event *event, PJRT_Event_OnReadyCallback function, void *argument) {
  PJRT_Event_OnReady_Args args = {SIZED(PJRT_Event_OnReady_Args), .event = event,
                                  .callback = function, .user_arg = argument};
  PJRT_Error *error = backend->PJRT_Event_OnReady(&args);
  if (error != NULL) function(error, argument);
}

static void follow(PJRT_Event *event, Execution like) {
  Execution *execution = allocate(1, sizeof *execution, "an execution");
  *execution = like;
  clock_gettime(CLOCK_MONOTONIC, &execution->since);
  more(&running);
  when_ready(event, end, execution);
}

PJRT_Error *unseen_execute(PJRT_LoadedExecutable_Execute_Args *args, const void *caller) {
  HostTransfers *transfers;
  PJRT_Error *error = host_transfers_begin(args, &transfers);
  if (error != NULL) return error;
  PJRT_Event **given = args->device_complete_events;
  PJRT_Event **events =
      given != NULL ? given : allocate(args->num_devices, sizeof *events, "completion events");
  args->device_complete_events = events;
  pthread_mutex_lock(&lock);
  while (launches >= MOST_LAUNCHES) pthread_cond_wait(&ended, &lock);
  ++launches;
  pthread_mutex_unlock(&lock);
  error = bridge_PJRT_LoadedExecutable_Execute(args);
  args->device_complete_events = given;
  if (error == NULL) {
    size_t *left = allocate(1, sizeof *left, "a launch");
    *left = args->num_devices;
    for (size_t i = 0; i < args->num_devices; ++i) {
      PJRT_Event *event = given == NULL ? events[i] : NULL;
      follow(events[i],
             (Execution){.event = event, .left = left, .caller = caller, .transfers = transfers});
    }
  } else {
    less(&launches);
    host_transfers_leave(transfers, args->num_devices);
  }
  if (given == NULL) free(events);
  return error;
}

// --- What the user is given

static void give(PJRT_Error *error, void *caller) {
  if (error != NULL) {
    char *text = error_text(error);
    event_write("seen", caller, text, "%s", "");
    free(text);
  }
  less(&given_events);
}

void unseen_give(PJRT_Event *event, const void *caller) {
  more(&given_events);
  when_ready(event, give, (void *)caller);
}

static PJRT_Error *ready_event(PJRT_Buffer_ReadyEvent_Args *args) {
  PJRT_Error *error = bridge_PJRT_Buffer_ReadyEvent(args);
  if (error == NULL) unseen_give(args->event, CALLER);
  return error;
}

static PJRT_Error *to_host(PJRT_Buffer_ToHostBuffer_Args *args) {
  const int copies = args->dst != NULL;  // otherwise it is asked for the size
  PJRT_Error *error = layouts_to_host(args);
  if (error == NULL && copies) unseen_give(args->event, CALLER);
  if (error != NULL && copies) unseen_returned(error, CALLER);
  return error;
}

// --- What a call returns
// A thread of Python raises it. torch_xla executes in a thread of its own, and keeps the error for
// the next call that waits: whether one has come is known in the end.

enum { MOST_KEPT = 64 };
static char *kept[MOST_KEPT];
static int kept_count;

void unseen_returned(PJRT_Error *error, const void *caller) {
  PJRT_Error_Message_Args args = {SIZED(PJRT_Error_Message_Args), .error = error};
  error_message(&args);
  char *text = strndup(args.message, args.message_size);
  if (text == NULL) abort();
  pthread_mutex_lock(&lock);
  const int keeps = !python_is_thread() && kept_count < MOST_KEPT;
  if (keeps) kept[kept_count++] = text;
  pthread_mutex_unlock(&lock);
  if (keeps) return;
  event_write("seen", caller, text, "%s", "");
  free(text);
}

// Note that all errors that were kept have been raised, but for the last one if that still `waits`.
VIRTUAL_TPU_EXPORT void virtual_tpu_raised(int waits) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < kept_count; ++i) {
    if (i < kept_count - waits) event_write("seen", NULL, kept[i], "%s", "");
    free(kept[i]);
  }
  kept_count = 0;
  pthread_mutex_unlock(&lock);
}

// --- Waiting

// Forget what runs, in a fork: it has none of the threads that would end what its parent has
// started.
static void forget(void) {
  running = given_events = launches = kept_count = 0;
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  ended = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}

void unseen_settle(void) {
  pthread_mutex_lock(&lock);
  while (running > 0) pthread_cond_wait(&ended, &lock);
  // The user may hear of an error just before this does. What never gets a value is not awaited.
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += SECONDS_FOR_CALLBACKS;
  while (given_events > 0 && pthread_cond_timedwait(&ended, &lock, &until) == 0) continue;
  pthread_mutex_unlock(&lock);
}

void unseen_fill(PJRT_Api *api) {
  pthread_atfork(NULL, NULL, forget);
  api->PJRT_Buffer_ReadyEvent = ready_event;
  api->PJRT_Buffer_ToHostBuffer = to_host;
}
