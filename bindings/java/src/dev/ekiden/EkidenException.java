package dev.ekiden;

/** An error of the runtime: its kind, such as "InputError", its message, and where it came up. */
public final class EkidenException extends RuntimeException {
  private static final long serialVersionUID = 1L;
  private final String kind;
  private final String backtrace;

  public EkidenException(String kind, String message) {
    this(kind, message, "");
  }

  EkidenException(String kind, String message, String backtrace) {
    super(message);
    this.kind = kind;
    this.backtrace = backtrace;
  }

  public String kind() {
    return kind;
  }

  /** The innermost call first; empty where nothing is known. */
  public String backtrace() {
    return backtrace;
  }

  @Override
  public String toString() {
    return kind + ": " + getMessage();
  }
}
