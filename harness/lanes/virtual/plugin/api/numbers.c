#include "api/api.h"

int number_read(const char **text, int low, int high, int *number) {
  const char *at = *text;
  int64_t value = 0;
  if (*at < '0' || *at > '9') return 0;
  for (; *at >= '0' && *at <= '9'; ++at) {
    value = value * 10 + (*at - '0');
    if (value > high) return 0;
  }
  if (value < low) return 0;
  *text = at;
  *number = (int)value;
  return 1;
}

int number_whole(const char *text, int low, int high, int *number) {
  int value;
  if (text == NULL || !number_read(&text, low, high, &value) || *text != '\0') return 0;
  *number = value;
  return 1;
}
