CREATE TABLE stock (name text, pieces int);
INSERT INTO stock VALUES ('cup', 5), ('plate', 3);
