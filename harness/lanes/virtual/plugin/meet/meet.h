#ifndef XLA_HARNESS_VIRTUAL_TPU_MEET_H_
#define XLA_HARNESS_VIRTUAL_TPU_MEET_H_

#include "compile/compile.h"
#include "host/host.h"
#include "job/job.h"

// --- executions.c
// Destroy what a call that fails has for its first devices: results and completion events.
void results_discard(const PJRT_LoadedExecutable_Execute_Args *args, size_t devices,
                     size_t results);
// Forget the executables of a client that ends: another client may get their addresses.
void executions_forget(const PJRT_Client *client);
void executions_fill(PJRT_Api *api);

// --- usage.c
// Count the memory of a buffer that the caller is given.
void usage_add(PJRT_Buffer *buffer);
// Count what an execution has taken of its arguments, and its results if the caller is given them.
void usage_executed(const PJRT_LoadedExecutable_Execute_Args *args, int has_results);
// Forget the buffers of a client that ends.
void usage_forget(const PJRT_Client *client);
// Add to those calls of `api` by which buffers come into being and end.
void usage_fill(PJRT_Api *api);

// --- gather.c
// Wait for the other devices of a program that a thread runs on one device of this process: whether
// they all bring the same executable, so that XLA's runtime lets them meet.
int gather_here(const PJRT_LoadedExecutable_AddressableDevices_Args *all,
                const PJRT_Device *device);
// Forget gatherings that all who came have left: nobody comes to them any more.
void gather_forget(void);

// --- meeting.c
// Wait for the other processes of this one's slice, as the creation of libtpu's client does.
PJRT_Error *meeting_await_all(void);
// Run a program that has devices of other processes too; `met` is 0, and nothing has happened, when
// it has none.
PJRT_Error *meeting_execute(PJRT_LoadedExecutable_Execute_Args *args, int *met);
void meeting_forget(const PJRT_LoadedExecutable *executable);
// Wait until nothing that the client executes is on its way. Returns 0 if functions of the host
// still run for it after some seconds: then it must not end.
int meeting_leave(const PJRT_Client *client);

// --- tickets.c
// Listen to the job's executor, and have buffers of a rank destroyed by a thread of the plugin.
void tickets_fill(PJRT_Api *api);

// --- raw_buffers.c
// Put access to the bytes of buffers before the extensions that `api` has.
void raw_buffers_fill(PJRT_Api *api);

// --- transfers.c
// Put transfers between processes before the extensions that `api` has.
void transfers_fill(PJRT_Api *api);

// --- unseen.c
struct timespec;
// Execute in this process; an error in which that ends becomes an event.
PJRT_Error *unseen_execute(PJRT_LoadedExecutable_Execute_Args *args, const void *caller);
// Write an event for an error that ended what was submitted at `since`.
void unseen_error(const void *caller, const struct timespec *since, const char *text);
// Write an event for an error that ended something now.
VIRTUAL_TPU_EXPORT void virtual_tpu_record_error(const char *text);
// Note that a call that executes returns this error.
void unseen_returned(PJRT_Error *error, const void *caller);
// Note that the user gets this event, and so the error that it may end in.
void unseen_give(PJRT_Event *event, const void *caller);
// Wait until all that was executed in this process has ended.
void unseen_settle(void);
void unseen_fill(PJRT_Api *api);

#endif  // XLA_HARNESS_VIRTUAL_TPU_MEET_H_
