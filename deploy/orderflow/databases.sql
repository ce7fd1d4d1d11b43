-- Each service has a database of its own.
create database orders;
create database inventory;
create database mail;
