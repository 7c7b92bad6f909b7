/**
 * Runs models that Ekiden compiled, by the foreign functions of Java 22: nothing is compiled for it
 * but Java. {@link dev.ekiden.Model} is where to begin. The runtime's library is in the jar that
 * scripts/build_bindings.py makes; the property or the variable EKIDEN_LIB_DIR names a folder with
 * another one. Any thread may call anything, but the fields of one {@link dev.ekiden.Obj} are written
 * by one thread at a time.
 */
package dev.ekiden;
