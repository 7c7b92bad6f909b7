package dev.ekiden;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** As much of JSON as the conformance script needs: it is trusted. */
final class Json {
  private final String text;
  private int at;

  private Json(String text) {
    this.text = text;
  }

  /** A map, a list, a text, a Double, a Boolean or null. */
  static Object parse(String text) {
    return new Json(text).value();
  }

  private char peek() {
    while (Character.isWhitespace(text.charAt(at))) at++;
    return text.charAt(at);
  }

  private void skip(char wanted) {
    if (peek() != wanted) throw new IllegalStateException(wanted + " expected at " + at);
    at++;
  }

  private Object value() {
    return switch (peek()) {
      case '{' -> map();
      case '[' -> items();
      case '"' -> string();
      case 't' -> word("true", true);
      case 'f' -> word("false", false);
      case 'n' -> word("null", null);
      default -> number();
    };
  }

  private Object word(String word, Object value) {
    at += word.length();
    return value;
  }

  private Map<String, Object> map() {
    Map<String, Object> made = new LinkedHashMap<>();
    skip('{');
    while (peek() != '}') {
      String key = string();
      skip(':');
      made.put(key, value());
      if (peek() == ',') at++;
    }
    at++;
    return made;
  }

  private List<Object> items() {
    List<Object> made = new ArrayList<>();
    skip('[');
    while (peek() != ']') {
      made.add(value());
      if (peek() == ',') at++;
    }
    at++;
    return made;
  }

  private String string() {
    StringBuilder made = new StringBuilder();
    skip('"');
    for (; text.charAt(at) != '"'; at++) {
      char each = text.charAt(at);
      if (each == '\\') {
        each = text.charAt(++at);
        if (each == 'u') {
          each = (char) Integer.parseInt(text.substring(at + 1, at + 5), 16);
          at += 4;
        } else if (each == 'n') {
          each = '\n';
        }
      }
      made.append(each);
    }
    at++;
    return made.toString();
  }

  private Double number() {
    int start = at;
    while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) at++;
    return Double.valueOf(text.substring(start, at));
  }
}
