/* A program that would use CUDA if it existed: by a weak reference, and by opening the library. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

extern int cuInit(unsigned) __attribute__((weak));

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = library ? (int (*)(unsigned))dlsym(library, "cuInit") : NULL;
    printf("weak %d, opened %d\n", cuInit ? cuInit(0) : -1, init ? init(0) : -1);
    /* Who looks a name up in vain asks why. */
    void *itself = dlopen(NULL, RTLD_NOW), *handles[] = {RTLD_DEFAULT, RTLD_NEXT, itself};
    for (int i = 0; i < 3; i++) {
        dlerror();
        void *found = dlsym(handles[i], "cuInit");
        const char *why = dlerror();
        printf("%d %d\n", found != NULL, why && strstr(why, "undefined symbol: cuInit") != NULL);
    }
    return 0;
}
