-- As `pg_dump` writes it.
\restrict everyfield

SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);

CREATE TABLE public.orders (
    id integer NOT NULL,
    state text
);

COPY public.orders (id, state) FROM stdin;
\.

ALTER TABLE ONLY public.orders
    ADD CONSTRAINT orders_pkey PRIMARY KEY (id);

\unrestrict everyfield
