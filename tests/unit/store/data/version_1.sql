-- The tables of version 1 as they were released: never edited.
CREATE TABLE sessions (
  id TEXT PRIMARY KEY, cwd TEXT NOT NULL, title TEXT NOT NULL DEFAULT '', provider TEXT NOT NULL DEFAULT '',
  model TEXT NOT NULL DEFAULT '', profile TEXT NOT NULL DEFAULT 'full', effort TEXT NOT NULL DEFAULT '',
  system TEXT NOT NULL DEFAULT '', tools TEXT NOT NULL DEFAULT '[]', meta TEXT NOT NULL DEFAULT '{}',
  parent_id TEXT, fork_message_id TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL
);
CREATE INDEX sessions_by_cwd ON sessions (cwd, updated_at);
CREATE TABLE messages (
  session_id TEXT NOT NULL, seq INTEGER NOT NULL, id TEXT NOT NULL, parent_id TEXT, body TEXT NOT NULL,
  PRIMARY KEY (session_id, seq), UNIQUE (session_id, id)
);
CREATE TRIGGER messages_are_never_updated BEFORE UPDATE ON messages
BEGIN SELECT RAISE(ABORT, 'messages are written once'); END;
CREATE TABLE calls (
  session_id TEXT NOT NULL, seq INTEGER NOT NULL, turn INTEGER NOT NULL, message_id TEXT NOT NULL,
  call_id TEXT NOT NULL,
  tool TEXT NOT NULL, arguments TEXT NOT NULL, access TEXT NOT NULL DEFAULT '{}',
  hashes TEXT NOT NULL DEFAULT '{}',
  state TEXT NOT NULL, result TEXT, digest TEXT,
  files TEXT NOT NULL DEFAULT '[]', seen TEXT NOT NULL DEFAULT '{}',
  started_at TEXT NOT NULL, ended_at TEXT,
  PRIMARY KEY (session_id, seq), UNIQUE (session_id, call_id)
);
CREATE TABLE turns (
  session_id TEXT NOT NULL, seq INTEGER NOT NULL, message_id TEXT NOT NULL, started_at TEXT NOT NULL,
  ended_at TEXT, outcome TEXT, detail TEXT NOT NULL DEFAULT '', PRIMARY KEY (session_id, seq)
);
CREATE TABLE requests (
  id INTEGER PRIMARY KEY, session_id TEXT NOT NULL, turn INTEGER NOT NULL, message_id TEXT,
  outcome TEXT NOT NULL,
  model TEXT NOT NULL DEFAULT '', input_tokens INTEGER NOT NULL DEFAULT 0,
  cached_tokens INTEGER NOT NULL DEFAULT 0,
  output_tokens INTEGER NOT NULL DEFAULT 0, reasoning_tokens INTEGER NOT NULL DEFAULT 0,
  cost_usd REAL NOT NULL DEFAULT 0,
  started_at TEXT NOT NULL, duration_s REAL NOT NULL DEFAULT 0
);
CREATE INDEX requests_by_session ON requests (session_id, turn);
CREATE TABLE decisions (
  id INTEGER PRIMARY KEY, session_id TEXT NOT NULL, call_id TEXT NOT NULL, tool TEXT NOT NULL,
  subject TEXT NOT NULL,
  action TEXT NOT NULL, reason TEXT NOT NULL, by TEXT NOT NULL, at TEXT NOT NULL
);
CREATE INDEX decisions_by_session ON decisions (session_id);
CREATE TABLE tasks (
  session_id TEXT NOT NULL, position INTEGER NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL,
  state TEXT NOT NULL,
  data TEXT NOT NULL DEFAULT '{}', updated_at TEXT NOT NULL, PRIMARY KEY (session_id, kind, position)
);
CREATE TABLE drafts (session_id TEXT PRIMARY KEY, body TEXT NOT NULL, updated_at TEXT NOT NULL);
PRAGMA user_version = 1;
