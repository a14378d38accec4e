-- As `mariadb-dump` writes it.
/*!40101 SET NAMES utf8mb4 */;
DROP TABLE IF EXISTS `bills`;
CREATE TABLE `bills` (
  `id` int(11) NOT NULL,
  `euros` int(11) DEFAULT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB;
DELIMITER ;;
/*!50003 CREATE*/ /*!50003 TRIGGER no_debts BEFORE INSERT ON bills FOR EACH ROW
BEGIN
  IF NEW.euros < 0 THEN SET NEW.euros = 0; END IF; -- it's a rule
END */;;
DELIMITER ;
