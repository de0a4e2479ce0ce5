#define _GNU_SOURCE
#include "meet/transfers.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "meet/meeting.h"

// What one process sends to another, as TorchTPU's send and recv do. The receiver gets a buffer
// without a value and a description of it, which its framework brings to the sender. The sender
// hands a copy of its buffer to the job's executor, which copies it to where the receiver reads it.

enum { MOST_DESCRIPTION = 48 };

// One end of a transfer.
typedef struct Transfer {
  struct Transfer *next;
  int number, file;
  Array array;
  void *memory;
  // Of what is received; `promise` is NULL of what is sent.
  PJRT_Client *client;
  PJRT_Device *device;
  PJRT_FulfillAliasBufferCallback *promise;
  // Of what is sent: the description of its other end.
  SendArgs send;
  PJRT_Event *copied;
  int rank, other;
  char *site;
} Transfer;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static Transfer *transfers;
static int transfers_made, sending, receiving;

// Add a transfer and return its number. The lock is held until the executor knows of it: whoever
// takes it may end it.
static int add(Transfer *transfer) {
  transfer->next = transfers;
  transfers = transfer;
  return transfer->number = ++transfers_made;
}

// Take the transfer with that number, or any of the client's, or any if both say none.
static Transfer *take(int number, const PJRT_Client *client) {
  pthread_mutex_lock(&lock);
  Transfer **link = &transfers;
  while (*link != NULL && ((number != 0 && (*link)->number != number) ||
                           (client != NULL && (*link)->client != client))) {
    link = &(*link)->next;
  }
  Transfer *transfer = *link;
  if (transfer != NULL) *link = transfer->next;
  pthread_mutex_unlock(&lock);
  return transfer;
}

static size_t memory_size(const Transfer *transfer) {
  return transfer->array.size > 0 ? transfer->array.size : 1;
}

static PJRT_Error *share(Transfer *transfer) {
  return memory_share(memory_size(transfer), &transfer->file, &transfer->memory);
}

static void give_back(Transfer *transfer) {
  if (transfer->memory != NULL) {
    munmap(transfer->memory, memory_size(transfer));
    close(transfer->file);
  }
  free(transfer->site);
  free(transfer);
}

static void end_receive(Transfer *transfer, const char *why) {
  PJRT_Buffer *buffer = NULL;
  char *own = NULL;
  if (why == NULL) {
    PJRT_Error *error =
        array_copy(transfer->client, transfer->device, &transfer->array, transfer->memory, &buffer);
    if (error != NULL) why = own = error_text(error);
  }
  const size_t size = why == NULL ? 0 : strlen(why);
  promise_keep(transfer->client, transfer->promise, buffer, why, size);
  free(own);
}

static void end_send(const Transfer *transfer, const char *why) {
  PJRT_Error *error = why == NULL ? NULL : error_again(PJRT_Error_Code_ABORTED, "%s", why);
  transfer->send.on_done(error, why == NULL, transfer->send.argument);
  error_drop(error);
}

// End a transfer that nobody else knows of any more.
static void end(Transfer *transfer, const char *why) {
  const int sends = transfer->promise == NULL;
  if (sends) {
    end_send(transfer, why);
  } else {
    end_receive(transfer, why);
  }
  give_back(transfer);
  pthread_mutex_lock(&lock);
  sending -= sends;
  receiving -= !sends;
  pthread_cond_broadcast(&ended);
  pthread_mutex_unlock(&lock);
}

void transfers_hear(const char *line, const char *text) {
  const char *rest;
  Transfer *transfer;
  if ((rest = line_after(line, "transferred")) != NULL) {
    if ((transfer = take(atoi(rest), NULL)) != NULL) end(transfer, NULL);
  } else if ((rest = line_after(line, "untransferred")) != NULL) {
    virtual_tpu_record_error(text);
    if ((transfer = take(atoi(rest), NULL)) != NULL) end(transfer, text);
  } else if (strcmp(line, "failed") == 0) {
    char *why = job_failure();
    while ((transfer = take(0, NULL)) != NULL) end(transfer, why);
    free(why);
  }
}

void transfers_settle(void) {
  if (!job_is_here()) return;
  pthread_mutex_lock(&lock);
  while (sending + receiving > 0) pthread_cond_wait(&ended, &lock);
  pthread_mutex_unlock(&lock);
}

void transfers_leave(const PJRT_Client *client) {
  if (!job_is_here()) return;
  pthread_mutex_lock(&lock);
  while (sending > 0) pthread_cond_wait(&ended, &lock);
  pthread_mutex_unlock(&lock);
  Transfer *transfer;
  while ((transfer = take(0, client)) != NULL) {
    job_send(-1, "unreceive %d", transfer->number);
    end(transfer, in_own_words("its client ended before anything was received"));
  }
}

// --- Receiving

static void cancel(const char *description, size_t size, PJRT_Error_Code reason,
                   const char *message, size_t message_size, OnCanceled on_canceled,
                   void *on_canceled_argument, void *argument) {
  (void)reason, (void)argument;
  int rank, number;
  char own[MOST_DESCRIPTION] = "";
  if (size < sizeof own) memcpy(own, description, size);
  Transfer *transfer = NULL;
  if (sscanf(own, "%d.%d", &rank, &number) == 2) transfer = take(number, NULL);
  char *why = strndup(message == NULL ? "" : message, message == NULL ? 0 : message_size);
  if (transfer != NULL) {
    job_send(-1, "unreceive %d", number);
    end(transfer, why);
  }
  free(why);
  on_canceled(NULL, on_canceled_argument);
}

// Promise one buffer, and tell the executor where its value goes.
static PJRT_Error *expect(const ReceiveArgs *args, size_t index, const char *site, int *number) {
  const PJRT_Buffer_Type type = args->element_types[index];
  const size_t dimensions = args->shape_num_dims[index];
  PJRT_Error *error = segment_check_result(type, dimensions);
  if (error != NULL) return error;
  Transfer *transfer = allocate(1, sizeof *transfer, "a transfer");
  transfer->client = args->client;
  transfer->device = args->device;
  array_measure(&transfer->array, type, args->dims[index], dimensions);
  error = share(transfer);
  if (error == NULL) {
    error = promise_make(args->client, args->device, &transfer->array, &args->buffers[index],
                         &transfer->promise);
  }
  if (error != NULL) {
    give_back(transfer);
    return error;
  }
  pthread_mutex_lock(&lock);
  *number = add(transfer);
  ++receiving;
  job_send(transfer->file, "receive %d %llu\n%s", *number, (unsigned long long)transfer->array.size,
           site == NULL ? "" : site);
  pthread_mutex_unlock(&lock);
  return NULL;
}

static PJRT_Error *receive(ReceiveArgs *args) {
  if (args->struct_size < offsetof(ReceiveArgs, num_buffers) + sizeof args->num_buffers) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     "MakeCrossHostReceiveBuffers: unexpected size %zu", args->struct_size);
  }
  PJRT_Error *error = job_join();
  if (error == NULL) error = job_error();
  if (error != NULL) return error;
  meeting_note(CALLER);
  const size_t count = args->num_shapes;
  char (*texts)[MOST_DESCRIPTION] = allocate(count, sizeof *texts, "descriptions");
  const char **descriptions = allocate(count, sizeof *descriptions, "descriptions");
  size_t *sizes = allocate(count, sizeof *sizes, "descriptions");
  int *numbers = allocate(count, sizeof *numbers, "descriptions");
  char *site = python_site();
  size_t done = 0;
  for (; done < count; ++done) {
    error = expect(args, done, site, &numbers[done]);
    if (error != NULL) break;
    sizes[done] =
        (size_t)snprintf(texts[done], sizeof texts[done], "%d.%d", identity.process, numbers[done]);
    descriptions[done] = texts[done];
  }
  if (error == NULL) error = job_error();  // it may have failed before these were known
  if (error == NULL) {
    for (size_t i = 0; i < count; ++i) usage_add(args->buffers[i]);
    args->num_buffers = count;
    args->notifier(NULL, descriptions, sizes, count, args->argument, cancel, NULL);
  }
  for (size_t i = 0; error != NULL && i < done; ++i) {
    Transfer *transfer = take(numbers[i], NULL);
    job_send(-1, "unreceive %d", numbers[i]);
    if (transfer != NULL) end(transfer, in_own_words("it was not received"));
    buffer_drop(args->buffers[i]);
  }
  free(site);
  free(numbers);
  free(sizes);
  free(descriptions);
  free(texts);
  return error;
}

// --- Sending

// Read what describes the other end, and free it; 0 when it is none of ours. The text lives as long
// as the call, unless there is an event, which only a plugin of a newer release could have made.
static int read_description(Transfer *transfer) {
  const SendArgs *args = &transfer->send;
  char own[MOST_DESCRIPTION] = "";
  error_drop(event_await(args->event));
  const size_t size = *args->description_size;
  if (size < sizeof own) memcpy(own, *args->description, size);
  if (args->free_description != NULL) {
    args->free_description(args->description, args->description_size);
  }
  return sscanf(own, "%d.%d", &transfer->rank, &transfer->other) == 2;
}

// Hand it to the executor, once it has its value.
static void *post(void *argument) {
  Transfer *transfer = argument;
  PJRT_Error *error = event_await(transfer->copied);
  if (error != NULL) {
    char *text = error_text(error);
    end(transfer, text);
    free(text);
    return NULL;
  }
  pthread_mutex_lock(&lock);
  const int number = add(transfer);
  const int sent = job_send(transfer->file, "send %d %d %d %llu\n%s", number, transfer->rank,
                            transfer->other, (unsigned long long)transfer->array.size,
                            transfer->site == NULL ? "" : transfer->site);
  pthread_mutex_unlock(&lock);
  char *why = job_failure();
  if (!sent || why != NULL) {
    // The job may have failed while this was on its way; whoever takes it first ends it.
    Transfer *own = take(number, NULL);
    if (own != NULL) end(own, why == NULL ? in_own_words("the job has ended") : why);
  }
  free(why);
  return NULL;
}

static PJRT_Error *start_copy(Transfer *transfer, PJRT_Buffer *buffer) {
  if (!read_description(transfer)) {
    return error_new(PJRT_Error_Code_INVALID_ARGUMENT,
                     "it is sent to a receiver that is not of this job");
  }
  PJRT_Error *error = job_join();
  if (error == NULL) error = job_error();
  if (error == NULL) error = array_measure_buffer(&transfer->array, buffer);
  if (error == NULL) error = share(transfer);
  if (error != NULL) return error;
  PJRT_Buffer_ToHostBuffer_Args copy = {SIZED(PJRT_Buffer_ToHostBuffer_Args), .src = buffer,
                                        .dst = transfer->memory, .dst_size = transfer->array.size};
  TRY(PJRT_Buffer_ToHostBuffer, copy);
  transfer->copied = copy.event;
  return NULL;
}

static void send(SendArgs *args) {
  const size_t least = offsetof(SendArgs, free_description);
  if (args->struct_size < least) {
    // An older caller: who would hear of its end is somewhere else.
    fprintf(stderr, "%s %zu\n", in_own_words("CopyToRemoteDevice: unexpected size"),
            args->struct_size);
    return;
  }
  Transfer *transfer = allocate(1, sizeof *transfer, "a transfer");
  memcpy(&transfer->send, args, args->struct_size < sizeof *args ? least : sizeof *args);
  pthread_mutex_lock(&lock);
  ++sending;
  pthread_mutex_unlock(&lock);
  PJRT_Error *error = start_copy(transfer, args->buffer);
  if (error != NULL) {
    char *why = error_text(error);
    end(transfer, why);
    free(why);
    return;
  }
  meeting_note(CALLER);
  transfer->site = python_site();
  detach(post, transfer);
}

static PJRT_Error *absent(void *args) {
  (void)args;
  return error_new(PJRT_Error_Code_UNIMPLEMENTED, "it has no transfers between hosts by key");
}

void transfers_fill(PJRT_Api *table) {
  static TransfersExtension extension = {
      .base = {.struct_size = sizeof extension, .type = PJRT_Extension_Type_CrossHostTransfers},
      .receive = receive,
      .send = send,
      .receive_by_key = absent,
      .send_by_key = absent};
  extension.base.next = table->extension_start;
  table->extension_start = &extension.base;
}
