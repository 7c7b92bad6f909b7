/**
 * Runs models that Ekiden compiled, by the foreign functions of Java 22: nothing is compiled for it
 * but Java. {@link dev.ekiden.Model} is where to begin. The library is found by the property or the
 * variable EKIDEN_LIB_DIR, the folder of libekiden_runtime.so. Any thread may call anything, but the
 * fields of one {@link dev.ekiden.Obj} are written by one thread at a time.
 */
package dev.ekiden;
