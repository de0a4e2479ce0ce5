#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "meet/meet.h"

// Exceptions that torch_xla raises twice: it keeps the error of an execution for whoever waits for
// that execution, and for the next call that locks the device. What the first has raised, the user
// has been given, though the second still waits. Both rethrow the same C++ exception. torch_xla's
// library and torch's, which does it for torch_xla, each call std::rethrow_exception through a slot
// of its own, and these slots are pointed to a function here.

#if defined(__x86_64__)
enum { SLOT = R_X86_64_JUMP_SLOT };
#define SLOT_OF(relocation) ELF64_R_TYPE((relocation)->r_info)
#elif defined(__aarch64__)
enum { SLOT = R_AARCH64_JUMP_SLOT };
#define SLOT_OF(relocation) ELF64_R_TYPE((relocation)->r_info)
#else
enum { SLOT = -1 };
#define SLOT_OF(relocation) 0
#endif
static const char RETHROW[] = "_ZSt17rethrow_exceptionNSt15__exception_ptr13exception_ptrE";
static const char COPY[] = "_ZNSt15__exception_ptr13exception_ptrC1ERKS0_";
static const char DESTROY[] = "_ZNSt15__exception_ptr13exception_ptrD1Ev";

// A std::exception_ptr: the address of an exception, which lives as long as one of these does. C++
// passes it by reference.
typedef struct {
  void *exception;
} Pointer;

enum { MOST_KEPT = 64 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Pointer raised[MOST_KEPT];  // copies: no later exception gets the address of one of them
static size_t raised_count;        // ever; the oldest ones are given up
static int is_again;               // the last one had been raised before
static void (*rethrow)(const Pointer *);
static void (*copy)(Pointer *, const Pointer *);
static void (*destroy)(Pointer *);

// Note an exception and rethrow it: only what a thread of Python rethrows becomes an error of
// Python.
static void note_and_rethrow(const Pointer *pointer) {
  if (python_is_thread()) {
    pthread_mutex_lock(&lock);
    is_again = 0;
    for (size_t i = 0; i < raised_count && i < MOST_KEPT; ++i) {
      is_again |= raised[i].exception == pointer->exception;
    }
    if (!is_again) {
      Pointer *place = &raised[raised_count++ % MOST_KEPT];
      destroy(place);  // does nothing to one of NULL
      copy(place, pointer);
    }
    pthread_mutex_unlock(&lock);
  }
  rethrow(pointer);
}

// Find the loaded library's slot for a function of another one; NULL if it has none.
static void **slot_of(const struct link_map *map, const char *name) {
  const ElfW(Rela) *relocations = NULL;
  const ElfW(Sym) *symbols = NULL;
  const char *names = NULL;
  size_t size = 0;
  for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_JMPREL) relocations = (const void *)entry->d_un.d_ptr;
    if (entry->d_tag == DT_SYMTAB) symbols = (const void *)entry->d_un.d_ptr;
    if (entry->d_tag == DT_STRTAB) names = (const char *)entry->d_un.d_ptr;
    if (entry->d_tag == DT_PLTRELSZ) size = entry->d_un.d_val;
    if (entry->d_tag == DT_PLTREL && entry->d_un.d_val != DT_RELA) return NULL;
  }
  if (relocations == NULL || symbols == NULL || names == NULL) return NULL;
  for (size_t i = 0; i < size / sizeof *relocations; ++i) {
    const ElfW(Rela) *relocation = &relocations[i];
    if (SLOT_OF(relocation) != SLOT) continue;
    if (strcmp(names + symbols[ELF64_R_SYM(relocation->r_info)].st_name, name) == 0) {
      return (void **)(map->l_addr + relocation->r_offset);
    }
  }
  return NULL;
}

// Redirect a function. Its slot's page may be read-only since the library was linked; it stays
// writable, as it was before.
static int redirect(void **slot, void *function) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  void *start = (void *)((uintptr_t)slot & ~(page - 1));
  if (mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return 0;
  __atomic_store_n(slot, function, __ATOMIC_RELEASE);
  return 1;
}

// Note which exceptions the library at `path`, which is loaded, rethrows; 0 where it can't be done.
VIRTUAL_TPU_EXPORT int virtual_tpu_note_rethrown(const char *path) {
  void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  struct link_map *map;
  if (library == NULL || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return 0;
  void **slot = slot_of(map, RETHROW);
  *(void **)&copy = dlsym(library, COPY);
  *(void **)&destroy = dlsym(library, DESTROY);
  *(void **)&rethrow = dlsym(library, RETHROW);
  if (slot == NULL || copy == NULL || destroy == NULL || rethrow == NULL) return 0;
  void (*function)(const Pointer *) = note_and_rethrow;
  return redirect(slot, *(void **)&function);
}

// Return whether the exception that was raised last had been raised before.
VIRTUAL_TPU_EXPORT int virtual_tpu_raised_again(void) {
  pthread_mutex_lock(&lock);
  const int answer = is_again;
  pthread_mutex_unlock(&lock);
  return answer;
}
