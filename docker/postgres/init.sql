-- The source: three tables that are written in one transaction. REPLICA IDENTITY FULL puts whole rows into deletes.
CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL);
CREATE TABLE transfers (id BIGSERIAL PRIMARY KEY, source BIGINT NOT NULL, target BIGINT NOT NULL, amount BIGINT NOT NULL);
CREATE TABLE notes (id BIGSERIAL PRIMARY KEY, transfer BIGINT NOT NULL, content TEXT);
ALTER TABLE accounts REPLICA IDENTITY FULL;
ALTER TABLE transfers REPLICA IDENTITY FULL;
ALTER TABLE notes REPLICA IDENTITY FULL;
INSERT INTO accounts SELECT number, 1000 FROM generate_series(1, 100) AS number;
