-- Names: any text of 1 to 1024 bytes, compared byte for byte.

CREATE TABLE name_case (what text, name text);
INSERT INTO name_case VALUES
	('one byte', 'x'),
	('longest', repeat('x', 1024)),
	('longest, one byte different', repeat('x', 1023) || 'y'),
	('two-byte characters', repeat('ä', 512)),
	('four-byte characters', repeat('😀', 256)),
	('composed', U&'\00E4'),
	('decomposed', U&'a\0308'),
	('quote', $q$it's "quoted"$q$),
	('newline', E'two\nlines'),
	('percent', '%s %d %%'),
	('backslash', '\x00'),
	('space', ' '),
	('hostile', $q$'; DROP TABLE lease_lock; --$q$);

-- each is a resource and an owner of its own
SELECT what, lease_acquire(name, '1 hour', name) FROM name_case;
SELECT count(*) FROM lease_status;
SELECT count(*) AS not_found FROM name_case AS c WHERE NOT EXISTS
	(SELECT FROM lease_status AS s WHERE s.resource = c.name AND s.owner = c.name);
SELECT what, lease_acquire(name, '1 hour', 'other') AS other, lease_renew(name, '2 hours', name), lease_release(name, name) FROM name_case;

-- bytes count, not characters
SELECT lease_acquire(repeat('ä', 513), '1 hour', 'ann');
SELECT lease_acquire('door', '1 hour', repeat('😀', 257));

-- a value that is stored compressed or out of line is the same name
CREATE TABLE stored (name text);
INSERT INTO stored VALUES (repeat('x', 1024));
ALTER TABLE stored ALTER name SET STORAGE EXTERNAL;
INSERT INTO stored VALUES (repeat('y', 1000));
SELECT lease_acquire(name, '1 hour', name) FROM stored;
SELECT lease_acquire(repeat('x', 1024), '1 hour', 'ann'), lease_acquire(repeat('y', 1000), '1 hour', 'ann');
SELECT lease_release(name, name) FROM stored;

DROP TABLE name_case, stored;
TRUNCATE lease_lock;
