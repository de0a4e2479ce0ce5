#include <string.h>

#include "host/ffi.h"

// Handlers of other libraries, such as jaxlib's of LAPACK. XLA asks a handler for the version of
// its interface and refuses another than its own, though a call is laid out alike in all of them.
// So each is registered as a function of this file, which answers that itself.

enum { MOST = 128 };
static FfiHandler handlers[MOST];
static char targets[MOST][64];
static int count;

static FfiError *forward(int number, FfiCall *call) {
  return ffi_asks_version(call) ? NULL : handlers[number](call);
}

// clang-format off
#define ONE(n) static FfiError *call_##n(FfiCall *call) { return forward(0##n, call); }
#define EIGHT(m, n) m(n##0) m(n##1) m(n##2) m(n##3) m(n##4) m(n##5) m(n##6) m(n##7)
#define SIXTY_FOUR(m, n) \
  EIGHT(m, n##0) EIGHT(m, n##1) EIGHT(m, n##2) EIGHT(m, n##3) \
  EIGHT(m, n##4) EIGHT(m, n##5) EIGHT(m, n##6) EIGHT(m, n##7)
// clang-format on
#define ALL(m) SIXTY_FOUR(m, 0) SIXTY_FOUR(m, 1)
#define NAME(n) call_##n,

ALL(ONE)

// Have programs call `handler` of another library by that name.
VIRTUAL_TPU_EXPORT int virtual_tpu_register_handler(const char *target, FfiHandler handler) {
  static const FfiHandler CALLS[] = {ALL(NAME)};
  for (int i = 0; i < count; ++i) {
    if (strcmp(targets[i], target) == 0) return 1;
  }
  if (count == MOST || strlen(target) >= sizeof *targets) return 0;
  strcpy(targets[count], target);
  handlers[count] = handler;
  ffi_register(target, CALLS[count]);
  ++count;
  return 1;
}
