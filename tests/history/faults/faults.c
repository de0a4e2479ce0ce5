/* The Nth call that reads or writes below some folders fails, in whichever process it is made.
 *
 * Preloaded into a process and all that it starts. FAULTS_STATE names a file of three 64-bit
 * numbers that they share: calls so far, the call that fails (0: none), and its errno.
 * FAULTS_BELOW lists the folders, with colons.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct state {
  _Atomic long calls, fails, error;
};

static struct state *state;
static const char *below;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("FAULTS_STATE");
  below = getenv("FAULTS_BELOW");
  if (!path || !below) return;
  int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) return;
  void *found = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  syscall(SYS_close, fd);
  if (found != MAP_FAILED) state = found;
}

/* Whether this call is the one; then errno is set. */
static int fails(const char *path) {
  if (!state || !path || atomic_load(&state->fails) == 0) return 0;
  for (const char *at = below; at && *at;) {
    size_t size = strcspn(at, ":");
    if (!strncmp(path, at, size) && (path[size] == '/' || !path[size])) {
      if (atomic_fetch_add(&state->calls, 1) + 1 != atomic_load(&state->fails)) return 0;
      errno = (int)atomic_load(&state->error);
      return 1;
    }
    at += size + (at[size] == ':');
  }
  return 0;
}

static int fails_at(int folder, const char *path) {
  char link[64], whole[2 * PATH_MAX + 2];
  ssize_t size;
  if (!state || !path || atomic_load(&state->fails) == 0) return 0;
  if (path[0] == '/') return fails(path);
  if (folder == AT_FDCWD)
    snprintf(link, sizeof link, "/proc/self/cwd");
  else
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
  size = syscall(SYS_readlink, link, whole, PATH_MAX);
  if (size < 0) return 0;
  snprintf(whole + size, sizeof whole - (size_t)size, "/%s", path);
  return fails(whole);
}

static int fails_of(int fd) {
  char link[64], path[PATH_MAX];
  ssize_t size;
  if (!state || atomic_load(&state->fails) == 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  size = syscall(SYS_readlink, link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return fails(path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define CALL(result, name, parameters, test, ...) \
  result name parameters {                        \
    static __typeof__(&name) real;                \
    if (test) return (result) - 1;                \
    if (!real) real = REAL(name);                 \
    return real(__VA_ARGS__);                     \
  }
#define OPEN(name)                             \
  int name(const char *path, int flags, ...) { \
    static __typeof__(&name) real;             \
    va_list rest;                              \
    va_start(rest, flags);                     \
    mode_t mode = va_arg(rest, mode_t);        \
    va_end(rest);                              \
    if (fails_at(AT_FDCWD, path)) return -1;   \
    if (!real) real = REAL(name);              \
    return real(path, flags, mode);            \
  }
#define OPEN_AT(name)                                      \
  int name(int folder, const char *path, int flags, ...) { \
    static __typeof__(&name) real;                         \
    va_list rest;                                          \
    va_start(rest, flags);                                 \
    mode_t mode = va_arg(rest, mode_t);                    \
    va_end(rest);                                          \
    if (fails_at(folder, path)) return -1;                 \
    if (!real) real = REAL(name);                          \
    return real(folder, path, flags, mode);                \
  }

OPEN(open)
OPEN(open64)
OPEN_AT(openat)
OPEN_AT(openat64)
CALL(ssize_t, read, (int fd, void *to, size_t n), fails_of(fd), fd, to, n)
CALL(ssize_t, pread, (int fd, void *to, size_t n, off_t at), fails_of(fd), fd, to, n, at)
CALL(ssize_t, pread64, (int fd, void *to, size_t n, off64_t at), fails_of(fd), fd, to, n, at)
CALL(ssize_t, write, (int fd, const void *from, size_t n), fails_of(fd), fd, from, n)
CALL(ssize_t, pwrite, (int fd, const void *from, size_t n, off_t at), fails_of(fd), fd, from, n, at)
CALL(ssize_t, writev, (int fd, const struct iovec *from, int n), fails_of(fd), fd, from, n)
CALL(int, fsync, (int fd), fails_of(fd), fd)
CALL(int, fdatasync, (int fd), fails_of(fd), fd)
CALL(int, mkdir, (const char *path, mode_t mode), fails_at(AT_FDCWD, path), path, mode)
CALL(int, link, (const char *from, const char *to), fails_at(AT_FDCWD, to), from, to)
CALL(int, rename, (const char *from, const char *to), fails_at(AT_FDCWD, to), from, to)
CALL(int, linkat, (int one, const char *from, int two, const char *to, int flags),
     fails_at(two, to), one, from, two, to, flags)
CALL(int, renameat, (int one, const char *from, int two, const char *to), fails_at(two, to), one,
     from, two, to)
