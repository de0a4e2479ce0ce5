#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/ffi.h"
#include "host/host.h"

// What a running program sends to its host and receives from it: JAX's callbacks on a TPU. Whoever
// executes it says for each channel which function takes or brings the bytes. XLA's CPU compiler
// has no such instructions; the Python half has put calls of the handler here in their places.

static const char TARGET[] = "xla_ffi_python_cpu_callback";

struct HostTransfers {
  HostSide side;
  pthread_mutex_t lock;
  size_t users;                  // devices that may still call, and calls of another process
  pthread_cond_t ended;          // a call of another process
  PJRT_ExecuteContext *context;  // NULL until it is made
  PJRT_Client *client;
  size_t sends, receives;
  PJRT_Device **device;
  int *ordinals;  // by which a handler knows the device that it is on
  PJRT_SendCallbackInfo *send;
  PJRT_RecvCallbackInfo *receive;
};

static char *text_of(const char *format, long long number) {
  char text[256];
  snprintf(text, sizeof text, format, number);
  return error_text(error_new(PJRT_Error_Code_UNKNOWN, "%s", text));
}

// --- To the host

static void free_chunk(void *data, void *unused) {
  (void)unused;
  free(data);
}

static PJRT_Error *callback_error(PJRT_Error_Code code, const char *message, size_t size) {
  return error_again(code, "%.*s", (int)size, message);
}

char *host_transfers_send(HostTransfers *transfers, size_t index, int64_t channel, const void *data,
                          size_t size) {
  for (size_t i = 0; i < transfers->sends; ++i) {
    const PJRT_SendCallbackInfo *info = &transfers->send[index * transfers->sends + i];
    if (info->channel_id != channel) continue;
    PJRT_Chunk chunk = {.data = allocate(size, 1, "what a program sends to its host"),
                        .size = size,
                        .deleter = free_chunk};
    memcpy(chunk.data, data, size);
    PJRT_CallbackError make = callback_error;
    PJRT_Error *error = info->send_callback(&chunk, &make, size, true, info->user_arg);
    return error == NULL ? NULL : error_text(error);
  }
  return text_of("nobody on the host takes what is sent by channel %lld", channel);
}

// --- From the host

struct PJRT_CopyToDeviceStream {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  char *data;
  size_t size, filled;
  int abandoned, users;  // the callback, and whoever waits for it
  PJRT_Client *client;
  PJRT_Device *device;
};

static void leave_stream(PJRT_CopyToDeviceStream *stream) {
  pthread_mutex_lock(&stream->lock);
  const int last = --stream->users == 0;
  pthread_mutex_unlock(&stream->lock);
  if (!last) return;
  pthread_mutex_destroy(&stream->lock);
  pthread_cond_destroy(&stream->changed);
  free(stream);
}

char *host_transfers_receive(HostTransfers *transfers, size_t index, int64_t channel, void *data,
                             size_t size) {
  for (size_t i = 0; i < transfers->receives; ++i) {
    const PJRT_RecvCallbackInfo *info = &transfers->receive[index * transfers->receives + i];
    if (info->channel_id != channel) continue;
    PJRT_CopyToDeviceStream *stream = allocate(1, sizeof *stream, "a stream from the host");
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    stream->data = data;
    stream->size = size;
    stream->users = 2;
    stream->client = transfers->client;
    stream->device = transfers->device[index];
    info->recv_callback(stream, info->user_arg);
    pthread_mutex_lock(&stream->lock);
    while (stream->filled < size && !stream->abandoned) {
      pthread_cond_wait(&stream->changed, &stream->lock);
    }
    const int whole = stream->filled == size;
    stream->data = NULL;
    pthread_mutex_unlock(&stream->lock);
    leave_stream(stream);
    return whole ? NULL : text_of("the host has brought too little by channel %lld", channel);
  }
  return text_of("nobody on the host brings what is received by channel %lld", channel);
}

static PJRT_Error *destroy_stream(PJRT_CopyToDeviceStream_Destroy_Args *args) {
  PJRT_CopyToDeviceStream *stream = args->stream;
  if (stream == NULL) return NULL;
  pthread_mutex_lock(&stream->lock);
  stream->abandoned = 1;
  pthread_cond_broadcast(&stream->changed);
  pthread_mutex_unlock(&stream->lock);
  leave_stream(stream);
  return NULL;
}

// Make an event that has come: that of a copy of one byte, as PJRT can't make one.
static PJRT_Error *done_event(const PJRT_CopyToDeviceStream *stream, PJRT_Event **event) {
  static const int8_t zero;
  PJRT_Client_BufferFromHostBuffer_Args args = {
      SIZED(PJRT_Client_BufferFromHostBuffer_Args),
      .client = stream->client,
      .data = &zero,
      .type = PJRT_Buffer_Type_S8,
      .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
      .device = stream->device};
  TRY(PJRT_Client_BufferFromHostBuffer, args);
  *event = args.done_with_host_buffer;
  buffer_drop(args.buffer);
  return NULL;
}

static PJRT_Error *add_chunk(PJRT_CopyToDeviceStream_AddChunk_Args *args) {
  PJRT_CopyToDeviceStream *stream = args->stream;
  PJRT_Error *error = done_event(stream, &args->transfer_complete);
  pthread_mutex_lock(&stream->lock);
  const int fits = stream->data != NULL && args->chunk->size <= stream->size - stream->filled;
  if (error == NULL && fits) {
    memcpy(stream->data + stream->filled, args->chunk->data, args->chunk->size);
    stream->filled += args->chunk->size;
    pthread_cond_broadcast(&stream->changed);
  }
  pthread_mutex_unlock(&stream->lock);
  if (error == NULL && !fits) {
    error = error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                      "the host brings %zu bytes, %zu of %zu have come", args->chunk->size,
                      stream->filled, stream->size);
  }
  args->chunk->deleter(args->chunk->data, args->chunk->deleter_arg);
  return error;
}

static PJRT_Error *total_bytes(PJRT_CopyToDeviceStream_TotalBytes_Args *args) {
  args->total_bytes = (int64_t)args->stream->size;
  return NULL;
}

static PJRT_Error *granule_size(PJRT_CopyToDeviceStream_GranuleSize_Args *args) {
  args->granule_size_in_bytes = 1;
  return NULL;
}

static PJRT_Error *current_bytes(PJRT_CopyToDeviceStream_CurrentBytes_Args *args) {
  pthread_mutex_lock(&args->stream->lock);
  args->current_bytes = (int64_t)args->stream->filled;
  pthread_mutex_unlock(&args->stream->lock);
  return NULL;
}

// --- An execution

static size_t index_of(const HostTransfers *transfers, int ordinal) {
  size_t index = 0;
  while (transfers->ordinals[index] != ordinal) ++index;
  return index;
}

static char *send_here(HostSide *side, int ordinal, int64_t channel, const void *data,
                       size_t size) {
  HostTransfers *transfers = (HostTransfers *)side;
  return host_transfers_send(transfers, index_of(transfers, ordinal), channel, data, size);
}

static char *receive_here(HostSide *side, int ordinal, int64_t channel, void *data, size_t size) {
  HostTransfers *transfers = (HostTransfers *)side;
  return host_transfers_receive(transfers, index_of(transfers, ordinal), channel, data, size);
}

void host_transfers_hold(HostTransfers *transfers) {
  pthread_mutex_lock(&transfers->lock);
  ++transfers->users;
  pthread_mutex_unlock(&transfers->lock);
}

int host_transfers_run(HostTransfers *transfers, size_t devices) {
  if (transfers == NULL) return 0;
  pthread_mutex_lock(&transfers->lock);
  const int runs = transfers->users > devices;
  pthread_mutex_unlock(&transfers->lock);
  return runs;
}

void host_transfers_await(HostTransfers *transfers, size_t devices) {
  pthread_mutex_lock(&transfers->lock);
  while (transfers->users > devices) pthread_cond_wait(&transfers->ended, &transfers->lock);
  pthread_mutex_unlock(&transfers->lock);
}

void host_transfers_leave(HostTransfers *transfers, size_t count) {
  if (transfers == NULL || count == 0) return;
  pthread_mutex_lock(&transfers->lock);
  transfers->users -= count;
  const int last = transfers->users == 0;
  pthread_cond_broadcast(&transfers->ended);
  pthread_mutex_unlock(&transfers->lock);
  if (!last) return;
  pthread_cond_destroy(&transfers->ended);
  PJRT_ExecuteContext_Destroy_Args destroy = {SIZED(PJRT_ExecuteContext_Destroy_Args),
                                              .context = transfers->context};
  if (transfers->context != NULL) error_drop(backend->PJRT_ExecuteContext_Destroy(&destroy));
  pthread_mutex_destroy(&transfers->lock);
  free(transfers->device);
  free(transfers->ordinals);
  free(transfers->send);
  free(transfers->receive);
  free(transfers);
}

static void *copy_lists(void *const *lists, size_t devices, size_t count, size_t size) {
  char *copy = allocate(devices * count, size, "the host's functions");
  for (size_t i = 0; i < devices && count > 0; ++i) {
    memcpy(copy + i * count * size, lists[i], count * size);
  }
  return copy;
}

HostTransfers *host_transfers_new(const PJRT_ExecuteOptions *options, PJRT_Device *const *devices,
                                  size_t count) {
  if (options->num_send_ops + options->num_recv_ops == 0 || count == 0) return NULL;
  HostTransfers *made = allocate(1, sizeof *made, "an execution's host");
  *made = (HostTransfers){.side = {send_here, receive_here},
                          .users = count,
                          .client = devices_client_of(devices[0]),
                          .sends = options->num_send_ops,
                          .receives = options->num_recv_ops,
                          .device = allocate(count, sizeof *made->device, "a host's devices"),
                          .ordinals = allocate(count, sizeof *made->ordinals, "a host's devices")};
  pthread_mutex_init(&made->lock, NULL);
  pthread_cond_init(&made->ended, NULL);
  made->send =
      copy_lists((void *const *)options->send_callbacks, count, made->sends, sizeof *made->send);
  made->receive = copy_lists((void *const *)options->recv_callbacks, count, made->receives,
                             sizeof *made->receive);
  for (size_t i = 0; i < count; ++i) {
    PJRT_Device_LocalHardwareId_Args local = {SIZED(PJRT_Device_LocalHardwareId_Args),
                                              .device = devices[i]};
    error_drop(backend->PJRT_Device_LocalHardwareId(&local));
    made->device[i] = devices[i];
    made->ordinals[i] = local.local_hardware_id;
  }
  return made;
}

PJRT_Error *host_side_attach(HostSide *side, PJRT_ExecuteOptions *options,
                             PJRT_ExecuteContext **made) {
  PJRT_ExecuteContext_Create_Args create = {SIZED(PJRT_ExecuteContext_Create_Args)};
  TRY(PJRT_ExecuteContext_Create, create);
  options->context = *made = create.context;
  return ffi_add_user_data(options->context, side);
}

// A program that exchanges data with its host looks for the other side in a context. Where the
// caller has none, all have an empty one, which tells it so.
static PJRT_ExecuteContext *no_host;

static void make_no_host(void) {
  PJRT_ExecuteContext_Create_Args create = {SIZED(PJRT_ExecuteContext_Create_Args)};
  error_drop(backend->PJRT_ExecuteContext_Create(&create));
  no_host = create.context;
}

PJRT_Error *host_transfers_begin(const PJRT_LoadedExecutable_Execute_Args *args,
                                 HostTransfers **out) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  *out = NULL;
  if (args->options->num_send_ops + args->options->num_recv_ops == 0) {
    pthread_once(&once, make_no_host);
    if (args->options->context == NULL) args->options->context = no_host;
    return NULL;
  }
  PJRT_LoadedExecutable_AddressableDevices_Args addressable = {
      SIZED(PJRT_LoadedExecutable_AddressableDevices_Args), .executable = args->executable};
  TRY(PJRT_LoadedExecutable_AddressableDevices, addressable);
  PJRT_Device *const *devices =
      args->execute_device == NULL ? addressable.addressable_devices : &args->execute_device;
  HostTransfers *made = host_transfers_new(args->options, devices, args->num_devices);
  if (made == NULL) return NULL;  // of no device
  PJRT_Error *error = host_side_attach(&made->side, args->options, &made->context);
  if (error != NULL) {
    host_transfers_leave(made, made->users);
    return error;
  }
  // The CPU's client never calls them, and refuses them for a program on a chosen device.
  args->options->num_send_ops = args->options->num_recv_ops = 0;
  *out = made;
  return NULL;
}

// --- What the program calls

// Unpack numbers of less than a byte, which a device packs, the first one into the lowest bits.
static void unpack(uint8_t *to, const uint8_t *from, size_t count, unsigned bits) {
  const unsigned of_byte = 8 / bits, mask = (1u << bits) - 1;
  for (size_t i = 0; i < count; ++i) {
    to[i] = (uint8_t)(from[i / of_byte] >> (i % of_byte * bits) & mask);
  }
}

static void pack(uint8_t *to, const uint8_t *from, size_t count, unsigned bits) {
  const unsigned of_byte = 8 / bits, mask = (1u << bits) - 1;
  for (size_t i = 0; i < count; ++i) {
    const uint8_t placed = (uint8_t)((from[i] & mask) << (i % of_byte * bits));
    to[i / of_byte] = i % of_byte == 0 ? placed : to[i / of_byte] | placed;
  }
}

static char *transfer_packed(HostSide *side, int ordinal, int64_t channel, int sends, void *data,
                             size_t count, unsigned bits) {
  uint8_t *unpacked = allocate(count, 1, "unpacked numbers");
  if (sends) unpack(unpacked, data, count, bits);
  char *why = sends ? side->send(side, ordinal, channel, unpacked, count)
                    : side->receive(side, ordinal, channel, unpacked, count);
  if (!sends && why == NULL) pack(data, unpacked, count, bits);
  free(unpacked);
  return why;
}

// Send or receive for a program: what is sent is an argument besides the token, what is received a
// result.
static FfiError *transfer(FfiCall *call) {
  if (ffi_asks_version(call)) return NULL;
  const int sends = call->arguments.size > 1;
  const int64_t channel = (int64_t)ffi_attribute(call, "channel");
  const size_t count = (size_t)ffi_attribute(call, "count");
  const unsigned bits = (unsigned)ffi_attribute(call, "bits");
  void *data = (sends ? call->arguments : call->results).buffers[0]->data;
  HostSide *side = ffi_user_data(call);
  FfiContextArgs device = {.struct_size = sizeof device, .context = call->context};
  FfiError *unknown = call->api->device_ordinal_get(&device);
  if (unknown != NULL) return unknown;
  const int ordinal = device.device_ordinal;
  char *why;
  if (side == NULL) {
    why = text_of(
        "the program exchanges data with its host by channel %lld, and "
        "the framework that executes it has no host side",
        channel);
  } else if (bits < 8) {
    why = transfer_packed(side, ordinal, channel, sends, data, count, bits);
  } else {
    why = sends ? side->send(side, ordinal, channel, data, count * bits / 8)
                : side->receive(side, ordinal, channel, data, count * bits / 8);
  }
  FfiError *error = ffi_error(call, why);
  free(why);
  return error;
}

void host_transfers_register(void) { ffi_register(TARGET, transfer); }

void host_transfers_fill(PJRT_Api *api) {
  api->PJRT_CopyToDeviceStream_Destroy = destroy_stream;
  api->PJRT_CopyToDeviceStream_AddChunk = add_chunk;
  api->PJRT_CopyToDeviceStream_TotalBytes = total_bytes;
  api->PJRT_CopyToDeviceStream_GranuleSize = granule_size;
  api->PJRT_CopyToDeviceStream_CurrentBytes = current_bytes;
  host_transfers_register();
}
