#ifndef XLA_HARNESS_VIRTUAL_TPU_HOST_H_
#define XLA_HARNESS_VIRTUAL_TPU_HOST_H_

#include "api/api.h"

// --- host_transfers.c
// Where what a program sends goes to, and what it receives comes from. Both return an error's text,
// to be freed, or NULL. `ordinal` is the device's, within this process's client.
typedef struct HostSide {
  char *(*send)(struct HostSide *side, int ordinal, int64_t channel, const void *data, size_t size);
  char *(*receive)(struct HostSide *side, int ordinal, int64_t channel, void *data, size_t size);
} HostSide;
// The functions that an execution's caller gives for each channel of each device.
typedef struct HostTransfers HostTransfers;
// Copy the functions of an execution's options; NULL when they have none.
HostTransfers *host_transfers_new(const PJRT_ExecuteOptions *options, PJRT_Device *const *devices,
                                  size_t count);
// Copy the functions of an execution in this process, whose options are made to name them.
PJRT_Error *host_transfers_begin(const PJRT_LoadedExecutable_Execute_Args *args,
                                 HostTransfers **out);
// Keep it for one call more, as one device.
void host_transfers_hold(HostTransfers *transfers);
// Return whether more calls run than those of so many devices; NULL is allowed. And wait until none
// does.
int host_transfers_run(HostTransfers *transfers, size_t devices);
void host_transfers_await(HostTransfers *transfers, size_t devices);
// Drop it for so many devices, which have ended; NULL is allowed.
void host_transfers_leave(HostTransfers *transfers, size_t count);
// Send or receive for one of the devices: an error's text, to be freed, or NULL.
char *host_transfers_send(HostTransfers *transfers, size_t index, int64_t channel, const void *data,
                          size_t size);
char *host_transfers_receive(HostTransfers *transfers, size_t index, int64_t channel, void *data,
                             size_t size);
// Have an execution's handlers find its host side, in a context that the caller is to destroy when
// the execution has ended. jaxlib gives one of its own on a GPU, and destroys it before that.
PJRT_Error *host_side_attach(HostSide *side, PJRT_ExecuteOptions *options,
                             PJRT_ExecuteContext **made);
void host_transfers_register(void);
void host_transfers_fill(PJRT_Api *api);

#endif  // XLA_HARNESS_VIRTUAL_TPU_HOST_H_
