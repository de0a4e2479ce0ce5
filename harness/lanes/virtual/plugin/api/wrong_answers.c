#include <stdlib.h>
#include <string.h>

#include "api/api.h"

// One thing that the plugin answers wrongly, for those who ask which tests see it. The names are
// those of harness/sensitivity/answers.py.
static const char VARIABLE[] = "VIRTUAL_TPU_WRONG_ANSWER";

int wrong_answer_is(const char *name) {
  const char *wrong = getenv(VARIABLE);
  return wrong != NULL && strcmp(wrong, name) == 0;
}

int answers_wrongly(const char *name) {
  if (!wrong_answer_is(name)) return 0;
  const void *caller = __builtin_return_address(0);
  event_plant(caller, "given");
  event_plant(caller, "taken");
  event_plant(caller, "executed");
  return 1;
}
