/* For an architecture without installed headers: uses only names of libc with plain arguments. */
int puts(const char *text);
void *malloc(unsigned long size);
void exit(int code);

void start(void) {
    char *text = malloc(8);
    for (int i = 0; i < 7; i++) text[i] = (char)('a' + i);
    text[7] = 0;
    puts(text);
    exit(3);
}
