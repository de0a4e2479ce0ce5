#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "compile/compile.h"

// Ranks that are forked from one process compile the same programs. The first to come to one
// compiles it, and the others load what it has made, from a file in memory that all of them have.
// Whoever can't use it compiles for itself.

enum { MOST_ENTRIES = 1024, LOOKS_UNTIL_CHECK = 50, PAUSE_NANOSECONDS = 1000000 };
static const size_t MOST_BYTES = 1u << 28;

typedef struct {
  _Atomic int complete;
  uint64_t hash, offset;
  uint64_t code_size, options_size, executable_size;  // of what lies there, in this order
} Entry;

// What the file begins with.
typedef struct {
  _Atomic uint64_t end;
  _Atomic unsigned count;
  Entry entries[MOST_ENTRIES];
} Table;

// A copy of bytes that a framework has loaded; each of its users counts.
typedef struct {
  int users;
  char bytes[];
} Copy;

// An executable, loaded or not, that came from bytes: another rank has compiled it, or a framework
// has loaded it. What XLA would make of it as bytes is incomplete, so they are kept.
typedef struct {
  Known known;
  const char *bytes;
  size_t size;
  Copy *copy;  // that has them; NULL for those in the file
} Reused;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Known *reused;
static Table *table;
static int file = -1;
static struct stat made;

// Share compilations among the processes that this one forks from now on. Returns 0, or an errno.
VIRTUAL_TPU_EXPORT int virtual_tpu_share_compilations(void) {
  file = memfd_create("xla-harness-compilations", MFD_CLOEXEC);
  // As large as it may get, without memory where nothing has been written.
  if (file < 0 || ftruncate(file, MOST_BYTES) != 0 || fstat(file, &made) != 0) return errno;
  table = mmap(NULL, MOST_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (table == MAP_FAILED) {
    table = NULL;
    return errno;
  }
  table->end = sizeof *table;
  return 0;
}

// End the sharing for later forks; the processes that have it already keep it.
VIRTUAL_TPU_EXPORT void virtual_tpu_unshare_compilations(void) {
  if (table != NULL) munmap(table, MOST_BYTES);
  table = NULL;
  if (file >= 0) close(file);
  file = -1;
}

// Return whether compilations are shared: a case may close every descriptor, and open another file
// there.
static int is_shared(void) {
  struct stat now;
  return table != NULL && fstat(file, &now) == 0 && now.st_ino == made.st_ino &&
         now.st_dev == made.st_dev;
}

static uint64_t hash_of(const PJRT_Client_Compile_Args *key) {
  const uint64_t hash = fingerprint(FINGERPRINT, key->program->code, key->program->code_size);
  return fingerprint(hash, key->compile_options, key->compile_options_size);
}

static int is_of(const Entry *entry, const PJRT_Client_Compile_Args *key) {
  const char *bytes = (const char *)table + entry->offset;
  return entry->code_size == key->program->code_size &&
         entry->options_size == key->compile_options_size &&
         memcmp(bytes, key->program->code, entry->code_size) == 0 &&
         memcmp(bytes + entry->code_size, key->compile_options, entry->options_size) == 0;
}

// Remember the bytes that an executable was loaded from; the file lives as long as this process.
static void remember(const void *executable, const char *bytes, size_t size, Copy *copy) {
  Reused *loaded = allocate(1, sizeof *loaded, "a loaded executable");
  *loaded = (Reused){.bytes = bytes, .size = size, .copy = copy};
  pthread_mutex_lock(&lock);
  if (copy != NULL) ++copy->users;
  known_add(&reused, executable, loaded);
  pthread_mutex_unlock(&lock);
}

static void drop_copy(Copy *copy) {
  pthread_mutex_lock(&lock);
  const int last = copy != NULL && --copy->users == 0;
  pthread_mutex_unlock(&lock);
  if (last) free(copy);
}

static const Reused *find(const void *executable) {
  pthread_mutex_lock(&lock);
  const Reused *loaded = known_find(reused, executable);
  pthread_mutex_unlock(&lock);
  return loaded;
}

void compilations_forget(const void *executable) {
  pthread_mutex_lock(&lock);
  Reused *gone = known_take(&reused, executable);
  pthread_mutex_unlock(&lock);
  if (gone != NULL) drop_copy(gone->copy);
  free(gone);
}

// Load the program if a rank has compiled it.
static int load(PJRT_Client_Compile_Args *args, const PJRT_Client_Compile_Args *key,
                uint64_t hash) {
  const unsigned count = table->count < MOST_ENTRIES ? table->count : MOST_ENTRIES;
  for (unsigned i = 0; i < count; ++i) {
    const Entry *entry = &table->entries[i];
    if (!entry->complete || entry->hash != hash || !is_of(entry, key)) continue;
    const char *bytes =
        (const char *)table + entry->offset + entry->code_size + entry->options_size;
    PJRT_Executable_DeserializeAndLoad_Args load = {
        SIZED(PJRT_Executable_DeserializeAndLoad_Args), .client = args->client,
        .serialized_executable = bytes, .serialized_executable_size = entry->executable_size};
    PJRT_Error *error = backend->PJRT_Executable_DeserializeAndLoad(&load);
    if (error == NULL) {
      args->executable = load.loaded_executable;
      remember(load.loaded_executable, bytes, entry->executable_size, NULL);
      return 1;
    }
    error_drop(error);
  }
  return 0;
}

static void store_bytes(const PJRT_Client_Compile_Args *key, uint64_t hash, const char *executable,
                        size_t size) {
  const size_t code = key->program->code_size, options = key->compile_options_size;
  const uint64_t offset = atomic_fetch_add(&table->end, code + options + size);
  if (offset + code + options + size > MOST_BYTES) return;
  // Taken now: memory that is missing later would end the process with SIGBUS.
  if (posix_fallocate(file, (off_t)offset, (off_t)(code + options + size)) != 0) return;
  const unsigned index = atomic_fetch_add(&table->count, 1);
  if (index >= MOST_ENTRIES) return;
  char *bytes = (char *)table + offset;
  memcpy(bytes, key->program->code, code);
  memcpy(bytes + code, key->compile_options, options);
  memcpy(bytes + code + options, executable, size);
  Entry *entry = &table->entries[index];
  entry->hash = hash;
  entry->offset = offset;
  entry->code_size = code;
  entry->options_size = options;
  entry->executable_size = size;
  entry->complete = 1;
}

// Keep for the others what has been compiled.
static void store(PJRT_LoadedExecutable *loaded, const PJRT_Client_Compile_Args *key,
                  uint64_t hash) {
  PJRT_LoadedExecutable_GetExecutable_Args get = {SIZED(PJRT_LoadedExecutable_GetExecutable_Args),
                                                  .loaded_executable = loaded};
  PJRT_Error *error = backend->PJRT_LoadedExecutable_GetExecutable(&get);
  if (error != NULL) {
    error_drop(error);
    return;
  }
  PJRT_Executable_Serialize_Args bytes = {SIZED(PJRT_Executable_Serialize_Args),
                                          .executable = get.executable};
  if ((error = backend->PJRT_Executable_Serialize(&bytes)) == NULL) {
    store_bytes(key, hash, bytes.serialized_bytes, bytes.serialized_bytes_size);
    bytes.serialized_executable_deleter(bytes.serialized_executable);
  } else {
    error_drop(error);
  }
  PJRT_Executable_Destroy_Args destroy = {SIZED(PJRT_Executable_Destroy_Args),
                                          .executable = get.executable};
  backend->PJRT_Executable_Destroy(&destroy);
}

static struct flock lock_of(short type, uint64_t hash) {
  return (struct flock){
      .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)(hash >> 2), .l_len = 1};
}

static int is_stopped(pid_t process) {
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
  FILE *stat = fopen(path, "re");
  const size_t size = stat == NULL ? 0 : fread(text, 1, sizeof text - 1, stat);
  if (stat != NULL) fclose(stat);
  text[size] = '\0';
  const char *name_end = strrchr(text, ')');
  return name_end != NULL && strncmp(name_end, ") T", 3) == 0;
}

// Take the program's lock, which a process loses when it ends. 0 when it can't be had: nobody
// waits for a process that a signal has stopped.
static int take_lock(uint64_t hash) {
  static const struct timespec pause = {.tv_nsec = PAUSE_NANOSECONDS};
  struct flock wanted = lock_of(F_WRLCK, hash);
  for (int looks = 1; fcntl(file, F_SETLK, &wanted) != 0; ++looks) {
    if (errno != EAGAIN && errno != EACCES && errno != EINTR) return 0;
    struct flock other = lock_of(F_WRLCK, hash);
    if (looks % LOOKS_UNTIL_CHECK == 0 && fcntl(file, F_GETLK, &other) == 0 &&
        other.l_type != F_UNLCK && is_stopped(other.l_pid)) {
      return 0;
    }
    nanosleep(&pause, NULL);
  }
  return 1;
}

static PJRT_Error *compile_once(PJRT_Client_Compile_Args *args, const PJRT_Client_Compile_Args *key,
                                int *is_reused) {
  const uint64_t hash = hash_of(key);
  if (!take_lock(hash)) return backend->PJRT_Client_Compile(args);
  PJRT_Error *error = NULL;
  if (load(args, key, hash)) {
    *is_reused = 1;
  } else if ((error = backend->PJRT_Client_Compile(args)) == NULL) {
    store(args->executable, key, hash);
  }
  struct flock unlock = lock_of(F_UNLCK, hash);
  fcntl(file, F_SETLK, &unlock);
  return error;
}

PJRT_Error *compilations_compile(PJRT_Client_Compile_Args *args, int *is_reused) {
  *is_reused = 0;
  if (identity.processes == 1 || !is_shared()) return backend->PJRT_Client_Compile(args);
  char *options = options_sorted(args->compile_options, args->compile_options_size);
  PJRT_Client_Compile_Args key = *args;
  key.compile_options = options;
  PJRT_Error *error = compile_once(args, &key, is_reused);
  free(options);
  return error;
}

// Release bytes that were handed out; the copy is NULL for those in the file, which stay.
static void release(PJRT_SerializedExecutable *copy) { drop_copy((Copy *)copy); }

PJRT_Error *compilations_serialize(const void *executable, PJRT_Executable_Serialize_Args *args) {
  const Reused *loaded = find(executable);
  if (loaded == NULL) return bridge_PJRT_Executable_Serialize(args);
  args->serialized_bytes = loaded->bytes;
  args->serialized_bytes_size = loaded->size;
  pthread_mutex_lock(&lock);
  if (loaded->copy != NULL) ++loaded->copy->users;
  pthread_mutex_unlock(&lock);
  args->serialized_executable = (PJRT_SerializedExecutable *)loaded->copy;
  args->serialized_executable_deleter = release;
  return NULL;
}

static PJRT_Error *serialize(PJRT_Executable_Serialize_Args *args) {
  return compilations_serialize(args->executable, args);
}

static PJRT_Error *get_executable(PJRT_LoadedExecutable_GetExecutable_Args *args) {
  PJRT_Error *error = bridge_PJRT_LoadedExecutable_GetExecutable(args);
  const Reused *loaded = error == NULL ? find(args->loaded_executable) : NULL;
  if (loaded != NULL) remember(args->executable, loaded->bytes, loaded->size, loaded->copy);
  if (error == NULL) memories_name(args->loaded_executable, args->executable);
  return error;
}

// Load an executable, as JAX does with its compilation cache and TorchTPU with all that it
// compiles.
static PJRT_Error *deserialize(PJRT_Executable_DeserializeAndLoad_Args *args) {
  PJRT_Error *error = devices_check_process();
  if (error == NULL) error = bridge_PJRT_Executable_DeserializeAndLoad(args);
  if (error != NULL) return error;
  const size_t size = args->serialized_executable_size;
  parameters_forget(args->loaded_executable);  // of another client's, at its address
  memories_learn(args->loaded_executable, args->serialized_executable, size);
  if (identity.processes == 1) return NULL;
  Copy *copy = allocate(1, sizeof *copy + size, "a serialized executable");
  memcpy(copy->bytes, args->serialized_executable, size);
  remember(args->loaded_executable, copy->bytes, size, copy);
  return NULL;
}

static PJRT_Error *destroy(PJRT_Executable_Destroy_Args *args) {
  compilations_forget(args->executable);
  memories_forget(args->executable);
  return bridge_PJRT_Executable_Destroy(args);
}

void compilations_fill(PJRT_Api *api) {
  api->PJRT_Executable_Destroy = destroy;
  api->PJRT_Executable_Serialize = serialize;
  api->PJRT_Executable_DeserializeAndLoad = deserialize;
  api->PJRT_LoadedExecutable_GetExecutable = get_executable;
}
