// The discovery's sockets, and the variables that it reads: what is no worker's neither breaks nor
// completes anything. Recorded lines first, then mixtures of their pieces from a fixed seed.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "caller.h"

#define TOKEN "00112233445566778899aabbccddeeff"
#define HELLO "token " TOKEN "\n"

enum { SLICES = 4, MIXTURES = 1500, MOST_SCRIPT = 1024, HELD = 80 };

// What found a fault once, and what is near to it.
static const char *const RECORDED[] = {
    "came -400\n",
    "came 400\n",
    "came 4294967296\n",
    "came 99999999999999999999\n",
    "lost -1\n",
    "again x\n",
    "go\n",
    "welcome\ncame -400\n",
    "welcome\ncame 4\n",
    "welcome\ngo 99999999999999999999\n",
    "join 1\n",
    "join 1\njoin 2\njoin 3\n",
    "join -400\n",
    "join 4294967297\n",
    "token\n",
    "token \n",
    "token 00112233445566778899aabbccddeef\njoin 1\n",
    "token 00112233445566778899aabbccddeefff\njoin 1\n",
    "leave\n",
    "GET / HTTP/1.1\r\n\r\n",
    "\n\n\n",
};
static const char *const PIECES[] = {
    "token ",  "join ",   "came ", "lost ", "again ", "go ", "leave",      "welcome",
    "refused", "\n",      "\n",    "\n",    " ",      "-",   "0",          "1",
    "3",       "4",       "256",   "-400",  TOKEN,    "0x1", "4294967297", "9223372036854775808",
    "\r\n",    "\xff\xfe"};

static uint32_t next_random(void) {
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 33);
}

typedef struct {
  size_t size;
  char text[MOST_SCRIPT];
} Script;

static void append(Script *script, const char *text, size_t size) {
  if (size > sizeof script->text - script->size) return;
  memcpy(script->text + script->size, text, size);
  script->size += size;
}

// A recorded one, then mixtures; some of them are cut, have other bytes, or a line that never ends.
static Script script_of(int number) {
  enum { KNOWN = sizeof RECORDED / sizeof *RECORDED };
  Script script = {0};
  if (number < KNOWN) {
    append(&script, RECORDED[number], strlen(RECORDED[number]));
    return script;
  }
  if (next_random() % 8) append(&script, "welcome\n", 8);
  for (uint32_t left = 1 + next_random() % 12; left > 0; --left) {
    const char *piece = PIECES[next_random() % (sizeof PIECES / sizeof *PIECES)];
    append(&script, piece, strlen(piece));
  }
  if (next_random() % 8 == 0) script.text[next_random() % script.size] = (char)next_random();
  if (next_random() % 8 == 0) {
    memset(script.text + script.size, 'a', sizeof script.text - script.size);
    script.size = sizeof script.text;
  }
  return script;
}

static struct sockaddr_in local(void) {
  return (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
}

// A port of this machine to listen at, which the environment then names as the coordinator's.
static int listen_as_coordinator(struct sockaddr_in *address) {
  *address = local();
  socklen_t size = sizeof *address;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT(bind(listener, (struct sockaddr *)address, size) == 0);
  EXPECT(listen(listener, 100) == 0);
  EXPECT(getsockname(listener, (struct sockaddr *)address, &size) == 0);
  char text[32];
  snprintf(text, sizeof text, "127.0.0.1:%d", ntohs(address->sin_port));
  setenv("MEGASCALE_COORDINATOR_ADDRESS", text, 1);
  setenv("XLA_HARNESS_JOB_TOKEN", TOKEN, 1);
  return listener;
}

static void become(int slice, const char *seconds) {
  setenv("VIRTUAL_TPU_DEADLINE", seconds, 1);
  identity.slices = identity.processes = SLICES;
  identity.first_slice = identity.process = slice;
}

static int knock(const struct sockaddr_in *address, const void *bytes, size_t size) {
  const struct timeval patience = {.tv_sec = 10};
  for (int tries = 0; tries < 1000; ++tries) {
    const int made = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(made, (const struct sockaddr *)address, sizeof *address) == 0) {
      setsockopt(made, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
      (void)!send(made, bytes, size, MSG_NOSIGNAL);
      return made;
    }
    close(made);
    usleep(10000);
  }
  fail("nobody listens");
}

// Whether the coordinator answers the line, in the end, with `expected`.
static int answers(const struct sockaddr_in *address, const char *line, const char *expected) {
  char heard[4096] = "";
  size_t used = 0;
  const int made = knock(address, line, strlen(line));
  while (used + 1 < sizeof heard && strstr(heard, expected) == NULL) {
    const ssize_t size = recv(made, heard + used, sizeof heard - used - 1, 0);
    if (size <= 0) break;
    used += (size_t)size;
    heard[used] = '\0';
  }
  close(made);
  return strstr(heard, expected) != NULL;
}

static atomic_int ended;
static char why[1024];

static void *discover_once(void *unused) {
  (void)unused;
  PJRT_Error *error = megascale_discover();
  if (error != NULL) snprintf(why, sizeof why, "%s", text_of(error));
  ended = 1;
  return NULL;
}

static void *discover_until_told(void *told) {
  while (!*(atomic_int *)told) {
    PJRT_Error *error = megascale_discover();
    if (error != NULL) text_of(error);
  }
  return NULL;
}

// All slices but the coordinator's own.
static void join_all(const struct sockaddr_in *address, int *slices, int count) {
  for (int i = 1; i < count; ++i) {
    char line[64];
    snprintf(line, sizeof line, HELLO "join %d\n", i);
    slices[i] = knock(address, line, strlen(line));
  }
}

// Strangers send all kinds of lines, many of them held open; then the real slices come.
TEST(strangers_neither_complete_nor_stop_a_discovery) {
  struct sockaddr_in address;
  close(listen_as_coordinator(&address));
  become(0, "15");
  pthread_t slice;
  pthread_create(&slice, NULL, discover_once, NULL);
  int held[HELD];
  for (int i = 0; i < HELD; ++i) held[i] = -1;
  for (int i = 0; i < MIXTURES; ++i) {
    const Script script = script_of(i);
    if (memmem(script.text, script.size, HELLO, strlen(HELLO)) != NULL) continue;
    int *place = &held[i % HELD];
    if (*place >= 0) close(*place);
    *place = knock(&address, script.text, script.size);
  }
  if (ended) fail("a stranger ended the discovery: %s", why);
  EXPECT(answers(&address, "token 00112233445566778899aabbccddee00\n", "refused"));
  int slices[SLICES];
  join_all(&address, slices, SLICES);
  pthread_join(slice, NULL);
  if (*why) fail("%s", why);
  // Whoever has the token is checked no less.
  for (int i = 0; i < MIXTURES; ++i) {
    Script own = {0};
    const Script script = script_of(i);
    append(&own, HELLO, strlen(HELLO));
    append(&own, script.text, script.size);
    close(knock(&address, own.text, own.size));
  }
  EXPECT(answers(&address, HELLO "join 1\n", "again 1"));
  for (int i = 1; i < SLICES; ++i) close(slices[i]);
  for (int i = 0; i < HELD; ++i) {
    if (held[i] >= 0) close(held[i]);
  }
}

// Its process may end as soon as it hears that all have come; the others hear it all the same.
TEST(the_coordinators_process_hears_last_that_all_have_come) {
  enum { MANY = 200 };
  struct sockaddr_in address;
  close(listen_as_coordinator(&address));
  become(0, "15");
  identity.slices = identity.processes = MANY;
  const pid_t coordinator = fork();
  if (coordinator == 0) {
    discover_once(NULL);
    _exit(*why != '\0');
  }
  int others[MANY], status;
  join_all(&address, others, MANY);
  EXPECT(waitpid(coordinator, &status, 0) == coordinator && status == 0);
  for (int i = MANY - 1; i > 0; --i) {
    char heard[8192];
    ssize_t used = 0, size;
    while ((size = recv(others[i], heard + used, sizeof heard - (size_t)used, 0)) > 0) {
      used += size;
    }
    if (memmem(heard, (size_t)used, "go 200\n", 7) == NULL)
      fail("slice %d: %.*s", i, (int)used, heard);
    close(others[i]);
  }
}

// Somebody else has the coordinator's port, and says all kinds of things.
TEST(a_slice_survives_whatever_a_coordinator_says) {
  struct sockaddr_in address;
  const int listener = listen_as_coordinator(&address);
  become(1, "5");
  atomic_int told = 0;
  pthread_t slice;
  pthread_create(&slice, NULL, discover_until_told, &told);
  for (int i = 0; i < MIXTURES; ++i) {
    const Script script = script_of(i);
    const int joined = accept(listener, NULL, NULL);
    char heard[256];
    (void)!recv(joined, heard, sizeof heard, 0);
    (void)!send(joined, script.text, script.size, MSG_NOSIGNAL);
    close(joined);
  }
  const int last = accept(listener, NULL, NULL);
  told = 1;
  EXPECT(send(last, "welcome\ngo 4\n", 13, MSG_NOSIGNAL) == 13);
  pthread_join(slice, NULL);
  close(last);
  close(listener);
}

TEST(a_line_without_an_end_does_not_hold_a_slice) {
  struct sockaddr_in address;
  const int listener = listen_as_coordinator(&address);
  become(1, "1");
  pthread_t slice;
  pthread_create(&slice, NULL, discover_once, NULL);
  const int joined = accept(listener, NULL, NULL);
  EXPECT(send(joined, "came", 4, MSG_NOSIGNAL) == 4);
  pthread_join(slice, NULL);
  EXPECT(strstr(why, "slice 1 waited 1 s in its discovery for slice 0, 1, 2, 3 of 4") != NULL);
  close(joined);
  close(listener);
}

TEST(another_jobs_slice_is_refused) {
  struct sockaddr_in address;
  const int listener = listen_as_coordinator(&address);
  become(1, "15");
  pthread_t slice;
  pthread_create(&slice, NULL, discover_once, NULL);
  const int joined = accept(listener, NULL, NULL);
  EXPECT(send(joined, "refused\n", 8, MSG_NOSIGNAL) == 8);
  pthread_join(slice, NULL);
  EXPECT(strstr(why, "slice 1 was refused by slice 0: expected the same XLA_HARNESS_JOB_TOKEN"));
  close(joined);
  close(listener);
}

static const struct {
  const char *name, *value, *expected;
} WRONG[] = {
    {"XLA_HARNESS_JOB_TOKEN", "", "XLA_HARNESS_JOB_TOKEN: expected 32 to 128 hexadecimal digits"},
    {"XLA_HARNESS_JOB_TOKEN", "short", "XLA_HARNESS_JOB_TOKEN: expected"},
    {"XLA_HARNESS_JOB_TOKEN", TOKEN "\njoin 2", "XLA_HARNESS_JOB_TOKEN: expected"},
    {"VIRTUAL_TPU_DEADLINE", "4294967297", "VIRTUAL_TPU_DEADLINE=4294967297: expected seconds"},
    {"VIRTUAL_TPU_DEADLINE", "-1", "VIRTUAL_TPU_DEADLINE=-1: expected seconds from 1"},
    {"VIRTUAL_TPU_DEADLINE", "1s", "VIRTUAL_TPU_DEADLINE=1s: expected seconds"},
};

TEST(a_job_with_wrong_variables_is_refused) {
  for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; ++i) {
    struct sockaddr_in address;
    close(listen_as_coordinator(&address));
    become(1, "1");
    setenv(WRONG[i].name, WRONG[i].value, 1);
    const char *text = text_of(megascale_discover());
    if (strstr(text, WRONG[i].expected) == NULL) fail("%s", text);
    EXPECT(strstr(text, TOKEN) == NULL);
  }
}
