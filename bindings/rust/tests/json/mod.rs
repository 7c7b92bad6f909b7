//! As much of JSON as the conformance script needs: it is trusted, so what is wrong with it panics.

use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Json>),
    Map(BTreeMap<String, Json>),
}

impl Json {
    pub fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Map(map) => map.get(key),
            _ => None,
        }
    }

    pub fn text(&self, key: &str) -> &str {
        match self.get(key) {
            Some(Json::Text(text)) => text,
            other => panic!("{key}: a text expected, got {other:?}"),
        }
    }

    pub fn list(&self, key: &str) -> &[Json] {
        match self.get(key) {
            Some(Json::List(items)) => items,
            other => panic!("{key}: a list expected, got {other:?}"),
        }
    }

    pub fn number(&self) -> f64 {
        match self {
            Json::Number(number) => *number,
            other => panic!("a number expected, got {other:?}"),
        }
    }
}

pub fn parse(text: &str) -> Json {
    let mut reader = Reader { text, at: 0 };
    reader.value()
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn peek(&mut self) -> char {
        let rest = self.text[self.at..].trim_start();
        self.at = self.text.len() - rest.len();
        rest.chars().next().expect("the text ends early")
    }

    fn skip(&mut self, wanted: char) {
        assert_eq!(self.peek(), wanted, "at {}", self.at);
        self.at += wanted.len_utf8();
    }

    fn word(&mut self, word: &str, value: Json) -> Json {
        assert!(self.text[self.at..].starts_with(word), "at {}", self.at);
        self.at += word.len();
        value
    }

    fn value(&mut self) -> Json {
        match self.peek() {
            '{' => self.map(),
            '[' => self.items(),
            '"' => Json::Text(self.string()),
            't' => self.word("true", Json::Bool(true)),
            'f' => self.word("false", Json::Bool(false)),
            'n' => self.word("null", Json::Null),
            _ => self.digits(),
        }
    }

    fn map(&mut self) -> Json {
        let mut map = BTreeMap::new();
        self.skip('{');
        while self.peek() != '}' {
            let key = self.string();
            self.skip(':');
            map.insert(key, self.value());
            if self.peek() == ',' {
                self.skip(',');
            }
        }
        self.skip('}');
        Json::Map(map)
    }

    fn items(&mut self) -> Json {
        let mut items = Vec::new();
        self.skip('[');
        while self.peek() != ']' {
            items.push(self.value());
            if self.peek() == ',' {
                self.skip(',');
            }
        }
        self.skip(']');
        Json::List(items)
    }

    fn string(&mut self) -> String {
        self.skip('"');
        let mut found = String::new();
        loop {
            let next = self.text[self.at..].chars().next().expect("a text ends early");
            self.at += next.len_utf8();
            match next {
                '"' => return found,
                '\\' => {
                    let escaped = self.text[self.at..].chars().next().expect("a text ends early");
                    self.at += escaped.len_utf8();
                    found.push(if escaped == 'n' { '\n' } else { escaped });
                }
                other => found.push(other),
            }
        }
    }

    fn digits(&mut self) -> Json {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !"+-.eE0123456789".contains(c)).unwrap_or(rest.len());
        self.at += end;
        Json::Number(rest[..end].parse().expect("a number"))
    }
}
