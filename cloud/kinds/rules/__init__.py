"""What the rules of every kind of object are made of. No module here does I/O.

* `fields`: reads one object's fields; its errors name the field.
* `kind_rules`: how objects of a kind are checked, which fields are kept, which other objects they need.
"""
