package leaselock;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** As much of JSON as the tests need. Numbers are doubles. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    static Object parse(String text) {
        return new Json(text).value();
    }

    private char next() {
        while (Character.isWhitespace(text.charAt(at))) {
            at++;
        }
        return text.charAt(at);
    }

    private Object value() {
        switch (next()) {
            case '{': return object();
            case '[': return list();
            case '"': return string();
            case 't': at += 4; return true;
            case 'f': at += 5; return false;
            case 'n': at += 4; return null;
            default: return number();
        }
    }

    private Map<String, Object> object() {
        Map<String, Object> found = new LinkedHashMap<>();
        for (at++; next() != '}';) {
            String name = string();
            next();
            at++;
            found.put(name, value());
            at += next() == ',' ? 1 : 0;
            next();
        }
        at++;
        return found;
    }

    private List<Object> list() {
        List<Object> found = new ArrayList<>();
        for (at++; next() != ']';) {
            found.add(value());
            at += next() == ',' ? 1 : 0;
        }
        at++;
        return found;
    }

    private String string() {
        StringBuilder found = new StringBuilder();
        for (at++; text.charAt(at) != '"'; at++) {
            if (text.charAt(at) != '\\') {
                found.append(text.charAt(at));
                continue;
            }
            char escaped = text.charAt(++at);
            if (escaped == 'u') {
                found.append((char) Integer.parseInt(text.substring(at + 1, at + 5), 16));
                at += 4;
            } else {
                int known = "bfnrt".indexOf(escaped);
                found.append(known < 0 ? escaped : "\b\f\n\r\t".charAt(known));
            }
        }
        at++;
        return found.toString();
    }

    private Double number() {
        int from = at;
        while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        return Double.valueOf(text.substring(from, at));
    }

    static String write(Object value) {
        StringBuilder to = new StringBuilder();
        write(value, to);
        return to.toString();
    }

    private static void write(Object value, StringBuilder to) {
        if (value instanceof Map) {
            String separator = "{";
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                to.append(separator);
                write(entry.getKey(), to);
                to.append(": ");
                write(entry.getValue(), to);
                separator = ", ";
            }
            to.append(separator.equals("{") ? "{}" : "}");
        } else if (value instanceof List) {
            String separator = "[";
            for (Object each : (List<?>) value) {
                to.append(separator);
                write(each, to);
                separator = ", ";
            }
            to.append(separator.equals("[") ? "[]" : "]");
        } else if (value instanceof String) {
            to.append('"');
            ((String) value).chars().forEach(c -> to.append(c < ' ' || c > '~' || c == '"' || c == '\\' ? String.format("\\u%04x", c) : (char) c));
            to.append('"');
        } else if (value instanceof Double && (Double) value == Math.rint((Double) value)) {
            to.append(((Double) value).longValue()); // an id comes back as it was
        } else {
            to.append(value);
        }
    }
}
