// What one rank sends to another through PJRT's extension for transfers.
#define _GNU_SOURCE
#include "meet/transfers.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "caller.h"

void virtual_tpu_settle(void);

enum { SIZE = 64 };
typedef struct {
  char text[SIZE];
} Description;

static int brought[2];  // descriptions, from rank 1 to rank 0
static int freed, canceled;
static struct {
  int count;
  bool enqueued;
  char why[512];
} done;

static TransfersExtension *transfers(void) {
  for (PJRT_Extension_Base *one = api->extension_start; one != NULL; one = one->next) {
    if (one->type == PJRT_Extension_Type_CrossHostTransfers) return (TransfersExtension *)one;
  }
  fail("there is no extension for transfers");
}

static void bring(PJRT_Error *error, const char **descriptions, size_t *sizes, size_t count,
                  void *argument, CancelNotifier cancel, void *cancel_argument) {
  (void)cancel, (void)cancel_argument;
  EXPECT(error == NULL && argument == &brought);
  for (size_t i = 0; i < count; ++i) {
    Description one = {""};
    EXPECT(sizes[i] < SIZE);
    memcpy(one.text, descriptions[i], sizes[i]);
    EXPECT(write(brought[1], &one, sizeof one) == sizeof one);
  }
}

static void note_cancel(PJRT_Error *error, void *argument) {
  EXPECT(error == NULL);
  ++*(int *)argument;
}

static void give_up(PJRT_Error *error, const char **descriptions, size_t *sizes, size_t count,
                    void *argument, CancelNotifier cancel, void *cancel_argument) {
  (void)argument;
  EXPECT(error == NULL && count == 1);
  cancel(descriptions[0], sizes[0], PJRT_Error_Code_ABORTED, "nobody sends", 12, note_cancel,
         &canceled, cancel_argument);
}

// So many arrays of float32, of four elements, then of none.
static PJRT_Error *try_receive(PJRT_Client *client, size_t count, const PJRT_Buffer_Type *types,
                               PJRT_Buffer **buffers, int gives_up) {
  static const int64_t four = 4, none = 0;
  const int64_t *dims[] = {&four, &none};
  const size_t ranks[] = {1, 1};
  PJRT_Buffer_MemoryLayout *layouts[] = {NULL, NULL};
  ReceiveArgs args = {.struct_size = sizeof args,
                      .client = client,
                      .num_shapes = count,
                      .shape_num_dims = ranks,
                      .dims = dims,
                      .element_types = types,
                      .layouts = layouts,
                      .device = first_device(client),
                      .argument = &brought,
                      .notifier = gives_up ? give_up : bring,
                      .buffers = buffers};
  PJRT_Error *error = transfers()->receive(&args);
  if (error == NULL) EXPECT(args.num_buffers == count);
  return error;
}

static void note_end(PJRT_Error *error, bool enqueued, void *argument) {
  EXPECT(argument == &done);
  if (error != NULL) {
    PJRT_Error_Message_Args message = {.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE,
                                       .error = error};
    api->PJRT_Error_Message(&message);
    snprintf(done.why, sizeof done.why, "%.*s", (int)message.message_size, message.message);
  }
  done.enqueued = enqueued;
  __atomic_add_fetch(&done.count, 1, __ATOMIC_SEQ_CST);
}

static void free_description(char **description, size_t *size) {
  memset(*description, 0, *size);
  ++freed;
}

// Send 1, 2, ... to what has that description, and wait for the end of it.
static void send_to(PJRT_Client *client, const char *text, int64_t count) {
  const float data[4] = {1, 2, 3, 4};
  char own[SIZE];
  snprintf(own, sizeof own, "%s", text);
  char *description = own;
  size_t size = strlen(own);
  PJRT_Buffer *buffer = buffer_of(client, data, count);
  SendArgs args = {.struct_size = sizeof args,
                   .buffer = buffer,
                   .description = &description,
                   .description_size = &size,
                   .argument = &done,
                   .on_done = note_end,
                   .free_description = free_description};
  const int before = done.count, freed_before = freed;
  transfers()->send(&args);
  EXPECT(freed == freed_before + 1);
  destroy_buffer(buffer);  // what is under way needs it no more
  while (__atomic_load_n(&done.count, __ATOMIC_SEQ_CST) == before) usleep(1000);
}

static Description next_description(void) {
  Description one;
  EXPECT(read(brought[0], &one, sizeof one) == sizeof one);
  return one;
}

static PJRT_Error *await_value(PJRT_Buffer *buffer, float *out, size_t size) {
  PJRT_Buffer_ToHostBuffer_Args args = {.src = buffer, .dst = out, .dst_size = size};
  PJRT_Error *error =
      CALL_SIZED(PJRT_Buffer_ToHostBuffer, &args, PJRT_Buffer_ToHostBuffer_Args_STRUCT_SIZE);
  return error == NULL ? event_await(args.event) : error;
}

static const PJRT_Buffer_Type FLOATS[] = {PJRT_Buffer_Type_F32, PJRT_Buffer_Type_F32};

static void transfer(int number) {
  PJRT_Client *client = create_client();
  if (number == 0) {
    for (int i = 0; i < 2; ++i) {
      send_to(client, next_description().text, 4 - 4 * i);
      EXPECT(done.enqueued && done.why[0] == '\0');
    }
  } else {
    PJRT_Buffer *buffers[2];
    float out[4] = {0};
    ok(try_receive(client, 2, FLOATS, buffers, 0), "receive");
    ok(await_value(buffers[1], out, 0), "of no elements");
    ok(await_value(buffers[0], out, sizeof out), "of four");
    EXPECT(out[0] == 1 && out[1] == 2 && out[2] == 3 && out[3] == 4);
    destroy_buffer(buffers[0]);
    destroy_buffer(buffers[1]);
  }
  destroy_client(client);
}

TEST(what_is_sent_is_received) {
  EXPECT(pipe(brought) == 0);
  as_ranks(transfer);
}

// The same description twice, as a framework has it that looks it up too early.
static void transfer_twice(int number) {
  PJRT_Client *client = create_client();
  if (number == 0) {
    const Description once = next_description();
    send_to(client, once.text, 4);
    EXPECT(done.enqueued);
    send_to(client, once.text, 4);
    EXPECT(strstr(done.why, "rank 1, which receives no more by that description"));
  } else {
    PJRT_Buffer *buffer;
    ok(try_receive(client, 1, FLOATS, &buffer, 0), "receive");
    virtual_tpu_settle();
    float out[4] = {0};
    ok(await_value(buffer, out, sizeof out), "of four");
    EXPECT(out[3] == 4);
    destroy_buffer(buffer);
  }
  destroy_client(client);
}

TEST(a_description_is_for_once) {
  EXPECT(pipe(brought) == 0);
  as_ranks(transfer_twice);
}

static void transfer_of_other_size(int number) {
  PJRT_Client *client = create_client();
  if (number == 0) {
    send_to(client, next_description().text, 3);
    EXPECT(!done.enqueued && strstr(done.why, "rank 0 sends 12 bytes, and rank 1 receives 16"));
  } else {
    PJRT_Buffer *buffer;
    float out[4];
    ok(try_receive(client, 1, FLOATS, &buffer, 0), "receive");
    EXPECT(strstr(text_of(await_value(buffer, out, sizeof out)), "rank 0 sends 12 bytes"));
    destroy_buffer(buffer);
  }
  destroy_client(client);
}

TEST(both_ends_hear_of_another_size) {
  EXPECT(pipe(brought) == 0);
  as_ranks(transfer_of_other_size);
}

// Rank 1 ends before rank 0 sends, or soon after: what is sent first may still be received.
static void transfer_to_nobody(int number) {
  PJRT_Client *client = create_client();
  if (number == 0) {
    const Description gone = next_description();
    send_to(client, "no description", 4);
    EXPECT(strstr(done.why, "a receiver that is not of this job"));
    send_to(client, gone.text, 4);
    EXPECT(done.enqueued || strstr(done.why, "sends 16 bytes to rank 1, which"));
    send_to(client, gone.text, 4);
    EXPECT(!done.enqueued && strstr(done.why, "sends 16 bytes to rank 1, which"));
  } else {
    PJRT_Buffer *buffer;
    ok(try_receive(client, 1, FLOATS, &buffer, 0), "receive");
    destroy_buffer(buffer);
  }
  destroy_client(client);
}

TEST(a_sender_hears_that_nobody_receives) {
  EXPECT(pipe(brought) == 0);
  as_ranks(transfer_to_nobody);
}

// Rank 0 does nothing, which is an error at the deadline.
static void wait_for_nobody(int number) {
  PJRT_Client *client = create_client();
  if (number == 1) {
    PJRT_Buffer *buffer;
    float out[4];
    ok(try_receive(client, 1, FLOATS, &buffer, 0), "receive");
    const char *why = text_of(await_value(buffer, out, sizeof out));
    // The whole report: rank 0 waits for nothing, and so may never have an error.
    EXPECT(strstr(why, "rank 1 waits for what nobody has sent, for 2 s\n"));
    EXPECT(strstr(why, "\nrank 1 receives 16 bytes that nobody has sent\n"));
    destroy_buffer(buffer);
    EXPECT(strstr(text_of(try_receive(client, 1, FLOATS, &buffer, 0)), "nobody has sent"));
    send_to(client, "0.1", 4);
    EXPECT(strstr(done.why, "nobody has sent"));
    EXPECT(write(brought[1], why, 1) == 1);
  } else {
    char byte;
    next_description();
    EXPECT(read(brought[0], &byte, 1) == 1);
  }
  destroy_client(client);
}

TEST(a_receiver_hears_that_nobody_sends) {
  EXPECT(pipe(brought) == 0);
  setenv("VIRTUAL_TPU_DEADLINE", "2", 1);
  as_ranks(wait_for_nobody);
}

static void receive_in_vain(int number) {
  PJRT_Client *client = create_client();
  if (number == 1) {
    const PJRT_Buffer_Type types[] = {PJRT_Buffer_Type_F32, PJRT_Buffer_Type_TOKEN};
    PJRT_Buffer *buffers[2];
    float out[4];
    EXPECT(strstr(text_of(try_receive(client, 2, types, buffers, 0)), "a token"));
    ok(try_receive(client, 1, FLOATS, buffers, 1), "receive");
    EXPECT(canceled == 1);
    EXPECT(strstr(text_of(await_value(buffers[0], out, sizeof out)), "nobody sends"));
    destroy_buffer(buffers[0]);
    ReceiveArgs small = {.struct_size = sizeof small - 1};
    EXPECT(strstr(text_of(transfers()->receive(&small)), "unexpected size"));
    EXPECT(strstr(text_of(transfers()->send_by_key(NULL)), "no transfers between hosts by key"));
  }
  destroy_client(client);
}

TEST(what_is_not_received_leaves_nothing) {
  EXPECT(pipe(brought) == 0);
  as_ranks(receive_in_vain);
}
