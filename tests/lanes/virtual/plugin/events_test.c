// Lines of the events' file: whole, valid, whoever writes at once and whatever the text is.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "caller.h"

enum { PROCESSES = 8, LINES = 100, LONG = 40000 };

// The test in Python reads the file: 8 processes, 100 lines each, some longer than a line may be.
TEST(lines_of_many_processes_stay_whole) {
  setenv("XLA_HARNESS_EVENTS", "whole.jsonl", 1);
  char *text = malloc(LONG + 1);
  memset(text, 'x', LONG);
  text[LONG] = '\0';
  for (int process = 0; process < PROCESSES; ++process) {
    if (fork() != 0) continue;
    for (int i = 0; i < LINES; ++i) {
      event_write("client", api, i % 2 == 0 ? NULL : text, ", \"slice\": %d", i);
    }
    _exit(0);
  }
  for (int process = 0; process < PROCESSES; ++process) {
    int status;
    wait(&status);
    EXPECT(status == 0);
  }
  free(text);
}

// Cut at each place in a character of one to four bytes: the file must be UTF-8 and JSON.
TEST(text_is_quoted_and_cut_between_characters) {
  setenv("XLA_HARNESS_EVENTS", "cut.jsonl", 1);
  static const char *const PIECES[] = {"a", "é", "€", "😀", "\"\\", "\n\t\x01", "\x7f"};
  char *text = malloc(LONG + 16);
  for (size_t piece = 0; piece < sizeof PIECES / sizeof *PIECES; ++piece) {
    for (int shift = 0; shift < 8; ++shift) {
      size_t used = (size_t)shift;
      memset(text, '-', used);
      while (used < LONG) {
        strcpy(text + used, PIECES[piece]);
        used += strlen(PIECES[piece]);
      }
      event_write("client", api, text, "%s", "");
    }
  }
  free(text);
}

TEST(a_short_text_comes_back_as_it_was) {
  setenv("XLA_HARNESS_EVENTS", "short.jsonl", 1);
  setenv("SKIP_MEGASCALE_PJRT_CLIENT", "\"tr\\ue\"\n\xc3\xa9", 1);
  event_write("client", api, "File \"x.py\", line 1\n  é€😀\\\t\x1f", "%s", "");
}

TEST(only_the_kinds_that_are_asked_for_are_written) {
  setenv("XLA_HARNESS_EVENTS", "kinds.jsonl", 1);
  setenv("XLA_HARNESS_EVENT_KINDS", "meet,kernel", 1);
  static const char *const KINDS[] = {"client", "meet",        "execute", "kernel", "fail",
                                      "error",  "meet,kernel", "seen",    "failed"};
  for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; ++i) {
    event_write(KINDS[i], api, NULL, "%s", "");
  }
}

TEST(quoting_never_writes_beyond_its_room) {
  static const char *const TEXTS[] = {"",
                                      "abc",
                                      "é€😀é€😀",
                                      "\x01\x02\x03\x04",
                                      "\"\"\"\"\"\"",
                                      "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80"};
  for (size_t size = 12; size < 40; ++size) {
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; ++i) {
      char *out = malloc(size);
      event_quote(out, size, TEXTS[i]);
      const size_t used = strlen(out);
      EXPECT(used >= 2 && used < size && out[0] == '"' && out[used - 1] == '"');
      free(out);
    }
  }
}

// The format's name is the caller's own, so it may be anything.
TEST(a_strange_format_is_still_a_line) {
  setenv("XLA_HARNESS_EVENTS", "format.jsonl", 1);
  PJRT_Client *client = create_client();
  static char format[3000];
  memset(format, '"', sizeof format);
  for (size_t size = 1; size <= sizeof format; size += sizeof format - 1) {
    const PJRT_Program program = {.struct_size = PJRT_Program_STRUCT_SIZE,
                                  .code = (char *)DOUBLE,
                                  .code_size = strlen(DOUBLE),
                                  .format = format,
                                  .format_size = size};
    PJRT_Client_Compile_Args args = {.client = client, .program = &program, .compile_options = ""};
    EXPECT(strlen(text_of(
               CALL_SIZED(PJRT_Client_Compile, &args, PJRT_Client_Compile_Args_STRUCT_SIZE))) > 0);
  }
  destroy_client(client);
}

TEST(a_file_that_cant_be_written_stops_nobody) {
  setenv("XLA_HARNESS_EVENTS", "/nowhere/events.jsonl", 1);
  destroy_client(create_client());
}
