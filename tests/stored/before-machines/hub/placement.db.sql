PRAGMA user_version=4;
CREATE TABLE elections (
                driver TEXT NOT NULL PRIMARY KEY, node TEXT NOT NULL, epoch INTEGER NOT NULL, since REAL NOT NULL,
                why TEXT NOT NULL
            ) STRICT, WITHOUT ROWID;
CREATE TABLE holds (
                driver TEXT NOT NULL, name TEXT NOT NULL, owner TEXT NOT NULL, node TEXT NOT NULL,
                epoch INTEGER NOT NULL, since REAL NOT NULL DEFAULT 0, lease_s INTEGER NOT NULL DEFAULT 0, kind TEXT NOT NULL DEFAULT '', id TEXT NOT NULL DEFAULT '', PRIMARY KEY (driver, name, owner)
            ) STRICT, WITHOUT ROWID;
INSERT INTO holds VALUES ('vendor.test', 'CreateVolume open-on-n2', '', 'n2', 13, 1795479703.2991426, 0, '', '');
INSERT INTO holds VALUES ('vendor.test', 'CreateVolume open-on-n3', '', 'n3', 14, 1795479703.4083612, 0, '', '');
CREATE TABLE inventories (
                driver TEXT NOT NULL, node TEXT NOT NULL, kind TEXT NOT NULL, PRIMARY KEY (driver, node, kind)
            ) STRICT, WITHOUT ROWID;
INSERT INTO inventories VALUES ('vendor.test', 'n2', 'volume');
INSERT INTO inventories VALUES ('vendor.test', 'n3', 'volume');
CREATE TABLE things (
                driver TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, node TEXT NOT NULL, name TEXT NOT NULL,
                gone REAL NOT NULL, owner TEXT NOT NULL DEFAULT '', epoch INTEGER NOT NULL DEFAULT 0, since REAL NOT NULL DEFAULT 0, PRIMARY KEY (driver, kind, id, node)
            ) STRICT, WITHOUT ROWID;
INSERT INTO things VALUES ('vendor.test', 'volume', 'found-on-n2', 'n2', '', 0.0, '', 11, 1795479703.2480237);
INSERT INTO things VALUES ('vendor.test', 'volume', 'id-of-on-n2', 'n2', 'CreateVolume on-n2', 0.0, '', 2, 1795479703.2182968);
INSERT INTO things VALUES ('vendor.test', 'volume', 'id-of-on-n3', 'n3', 'CreateVolume on-n3', 0.0, '', 5, 1795479703.2279356);
INSERT INTO things VALUES ('vendor.test', 'volume', 'id-of-short-lived', 'n2', 'CreateVolume short-lived', 1795479703.2416732, '', 10, 1795479703.2366908);
