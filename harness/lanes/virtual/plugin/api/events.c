#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "api/api.h"

enum { NAME = 64, LINE = 32768 };

const char *event_quote(char *out, size_t size, const char *text) {
  if (text == NULL) return strcpy(out, "null");
  size_t used = 0;
  out[used++] = '"';
  for (; *text != '\0' && used + 9 < size; ++text) {
    const unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\') {
      out[used++] = '\\';
      out[used++] = *text;
    } else if (c < 0x20) {
      used += (size_t)sprintf(out + used, "\\u%04x", c);
    } else {
      out[used++] = *text;
    }
  }
  // Not in the middle of a character of several bytes.
  if (*text != '\0') {
    while (((unsigned char)out[used - 1] & 0xC0) == 0x80) --used;
    if ((unsigned char)out[used - 1] >= 0xC0) --used;
  }
  out[used++] = '"';
  out[used] = '\0';
  return out;
}

// Return the name of the library that called. dladdr looks through all symbols of a library, so
// each place that calls is looked up once.
static const char *library_of(const void *caller) {
  static struct {
    _Atomic(const void *) caller;
    char name[NAME];
  } known[64];
  static atomic_size_t count;
  const size_t filled = atomic_load_explicit(&count, memory_order_acquire);
  for (size_t i = 0; i < filled && i < 64; ++i) {
    if (atomic_load_explicit(&known[i].caller, memory_order_acquire) == caller) {
      return known[i].name;
    }
  }
  static _Thread_local char name[NAME];
  Dl_info info;
  const char *path = dladdr(caller, &info) != 0 && info.dli_fname != NULL ? info.dli_fname : "?";
  // jaxlib's extensions load its library as jaxlib/mlir/_mlir_libs/../../libjax_common.so.
  char *resolved = realpath(path, NULL);
  if (resolved != NULL) path = resolved;
  const char *base = strrchr(path, '/');
  base = base == NULL ? path : base + 1;
  if (strncmp(base, "_XLAC", 5) == 0) base = "torch_xla";
  static const char JAXLIB[] = "/jaxlib/";
  const ptrdiff_t folder = base - path - (ptrdiff_t)(sizeof JAXLIB - 1);
  if (folder >= 0 && strncmp(path + folder, JAXLIB, sizeof JAXLIB - 1) == 0) base = "jax";
  if (strncmp(base, "libxla_base.", 12) == 0) base = "torch_tpu";
  snprintf(name, sizeof name, "%s", base);
  free(resolved);
  const size_t slot = atomic_fetch_add(&count, 1);
  if (slot < 64) {
    memcpy(known[slot].name, name, sizeof name);
    atomic_store_explicit(&known[slot].caller, caller, memory_order_release);
  }
  return name;
}

// Return whether a list such as "client,failed" has the event.
static int is_listed(const char *list, const char *event) {
  const size_t size = strlen(event);
  for (const char *at = list; at != NULL && *at != '\0';) {
    const size_t length = strcspn(at, ",");
    if (length == size && strncmp(at, event, size) == 0) return 1;
    at += length + (at[length] == ',');
  }
  return 0;
}

// What was written to the log and what could not be, in memory that the reader of the log shares
// with all processes that write it: neither a full disk nor closed descriptors keep it from them.
typedef struct {
  uint64_t file;          // the log's inode
  atomic_ullong written;  // bytes
  atomic_int error;       // errno of a write that failed; 0 if none did
} Ledger;

// Return the ledger of this process's log, or NULL if its reader keeps none.
static Ledger *ledger_of_log(void) {
  static _Atomic(Ledger *) mapped;
  Ledger *ledger = atomic_load_explicit(&mapped, memory_order_acquire);
  const char *path = getenv(EVENTS_VARIABLE "_WRITTEN");
  if (ledger != NULL || path == NULL || *path == '\0') return ledger;
  const int file = open(path, O_RDWR | O_CLOEXEC);
  struct stat status;
  if (file >= 0 && fstat(file, &status) == 0 && status.st_size >= (off_t)sizeof *ledger) {
    void *memory = mmap(NULL, sizeof *ledger, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory != MAP_FAILED) ledger = memory;
  }
  if (file >= 0) close(file);
  if (ledger == NULL) fprintf(stderr, "%s%s can't be mapped: %m\n", in_own_words(""), path);
  atomic_store_explicit(&mapped, ledger, memory_order_release);
  return ledger;
}

// Append the line with one write, so that processes never mix lines. Opened each time: a case may
// close every descriptor it finds. Returns 0, or the errno of what failed.
static int append(const char *path, const char *line, size_t size, Ledger *ledger) {
  const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
  if (file < 0) return errno;
  struct stat status;
  const int is_log = ledger != NULL && fstat(file, &status) == 0 && status.st_ino == ledger->file;
  // After its reader has closed the log, a process that outlives its case finds another file here.
  int error = strncmp(path, "/proc/", 6) == 0 && ledger != NULL && !is_log ? ESTALE : 0;
  for (size_t done = 0; done < size && error == 0;) {
    const ssize_t count = write(file, line + done, size - done);
    if (count > 0) done += (size_t)count;
    if (count == 0) error = ENOSPC;
    if (count < 0 && errno != EINTR) error = errno;
  }
  close(file);
  if (is_log && error == 0) atomic_fetch_add(&ledger->written, size);
  return error;
}

// The kinds that decide a test's outcome, which no list of kinds leaves out.
static const char OF_OUTCOMES[] = "error,seen,failed";

int event_wants_stack(const char *event) { return is_listed(getenv("XLA_HARNESS_STACKS"), event); }

void event_write(const char *event, const void *caller, const char *stack, const char *format,
                 ...) {
  const char *path = getenv(EVENTS_VARIABLE);
  if (path == NULL || *path == '\0') return;
  const char *kinds = getenv("XLA_HARNESS_EVENT_KINDS");
  if (kinds != NULL && !is_listed(kinds, event) && !is_listed(OF_OUTCOMES, event)) return;
  char members[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(members, sizeof members, format, arguments);
  va_end(arguments);
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  char by[2 * NAME], guard[256];
  char small[1024], *large = stack == NULL ? NULL : allocate(LINE, 1, "a stack"), *line;
  char *quoted = large == NULL ? small : large;
  const size_t room = large == NULL ? sizeof small : LINE;
  const int size = asprintf(
      &line,
      "{\"event\": \"%s\", \"process\": %d, \"thread\": %ld, \"time\": %lld.%09ld, \"by\": %s, "
      "\"guard\": %s, \"stack\": %s%s}\n",
      event, (int)getpid(), syscall(SYS_gettid), (long long)now.tv_sec, now.tv_nsec,
      event_quote(by, sizeof by, library_of(caller)),
      event_quote(guard, sizeof guard, getenv(launch_name(LAUNCH_NO_DISCOVERY))),  // also empty
      event_quote(quoted, room, stack), members);
  free(large);
  if (size < 0) return;
  Ledger *ledger = ledger_of_log();
  const int error = append(path, line, (size_t)size, ledger);
  if (error != 0) {
    if (ledger != NULL) atomic_store(&ledger->error, error);
    fprintf(stderr, "%s=%s can't be written: %s\n", in_own_words("XLA_HARNESS_EVENTS"), path,
            strerror(error));
  }
  free(line);
}

void event_plant(const void *caller, const char *stage) {
  event_write("plant", caller, NULL, ", \"stage\": \"%s\"", stage);
}

uint64_t fingerprint(uint64_t start, const char *bytes, size_t size) {
  for (size_t i = 0; i < size; ++i) start = (start ^ (unsigned char)bytes[i]) * 0x100000001B3u;
  return start;
}

void event_compilation(const char *event, const void *caller, const PJRT_Program *program) {
  char *stack = event_wants_stack(event) ? python_stack() : NULL;
  char format[64], quoted[128];
  snprintf(format, sizeof format, "%.*s", (int)program->format_size, program->format);
  event_write(event, caller, stack,
              ", \"format\": %s, \"bytes\": %zu, \"fingerprint\": \"%016llx\"",
              event_quote(quoted, sizeof quoted, format), program->code_size,
              (unsigned long long)fingerprint(FINGERPRINT, program->code, program->code_size));
  free(stack);
}
