PRAGMA user_version=1;
CREATE TABLE claims (
            driver TEXT NOT NULL, name TEXT NOT NULL, node TEXT NOT NULL, PRIMARY KEY (driver, name)
        ) STRICT, WITHOUT ROWID;
INSERT INTO claims VALUES ('vendor.test', 'CreateVolume open-on-n2', 'n2');
INSERT INTO claims VALUES ('vendor.test', 'CreateVolume open-on-n3', 'n3');
CREATE TABLE inventories (
            driver TEXT NOT NULL, node TEXT NOT NULL, kind TEXT NOT NULL, PRIMARY KEY (driver, node, kind)
        ) STRICT, WITHOUT ROWID;
INSERT INTO inventories VALUES ('vendor.test', 'n2', 'volume');
INSERT INTO inventories VALUES ('vendor.test', 'n3', 'volume');
CREATE TABLE things (
            driver TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, node TEXT NOT NULL, name TEXT NOT NULL,
            gone REAL NOT NULL, PRIMARY KEY (driver, kind, id, node)
        ) STRICT, WITHOUT ROWID;
INSERT INTO things VALUES ('vendor.test', 'volume', 'found-on-n2', 'n2', '', 0.0);
INSERT INTO things VALUES ('vendor.test', 'volume', 'id-of-on-n2', 'n2', 'CreateVolume on-n2', 0.0);
INSERT INTO things VALUES ('vendor.test', 'volume', 'id-of-on-n3', 'n3', 'CreateVolume on-n3', 0.0);
INSERT INTO things VALUES ('vendor.test', 'volume', 'id-of-short-lived', 'n2', 'CreateVolume short-lived', 1795405214.3901324);
